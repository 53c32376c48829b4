"""Hand-made steps: a typical step's figures, and runs as events whose every second is known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api.check.load import read_job
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import resolve
from rljob_runtime.report.analysis.step_figures import PARTS, StepFigures

JOB: dict[str, Any] = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "slow"},
    "spec": {
        "steps": 20,
        "model": {"builtin": "tiny"},
        "data": {"jsonl": {"path": "prompts.jsonl"}},
        "rewards": [{"name": "any", "type": "exact"}],
        "batch": {
            "globalBatchSize": 8,
            "samplesPerPrompt": 8,
            "maxPromptLength": 16,
            "maxResponseLength": 256,
            "microBatchSize": 2,
        },
        "accelerator": {"type": "emulated", "devicesPerNode": 1},
    },
}


@pytest.fixture
def job_of() -> Callable[..., RLJob]:
    """A resolved job with changes given as dotted paths under spec."""

    def make(**changes: Any) -> RLJob:
        job = json.loads(json.dumps(JOB))
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = job["spec"]
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return resolve(read_job(job))

    return make


@pytest.fixture
def figures_of() -> Callable[..., StepFigures]:
    """A step of which only what is given took time; the parts' sum is its seconds."""

    def make(blamed: dict[str, float], busy: dict[str, float], **others: Any) -> StepFigures:
        return StepFigures(
            seconds=sum(blamed.values()),
            blame=dict.fromkeys(PARTS, 0.0) | blamed,
            busy=busy,
            **others,
        )

    return make


def phase(step: int, name: str, role: str, start: float, end: float) -> dict[str, Any]:
    return {
        "time": end,
        "kind": "phase",
        "name": name,
        "step": step,
        "role": role,
        "device": 0,
        "start": start,
        "end": end,
    }


def made_events(steps: int) -> list[dict[str, Any]]:
    """Steps of 10 s on one device: 4 s of generation, whose last fifth of 40 samples comes in its last 2 s;
    3 s of rewards, which begin 1 s before its end; 3 s of update, of which it waits 0.5 s for rewards; 1 s of
    sync, and half a second of nothing before it."""
    events: list[dict[str, Any]] = [
        {"time": 0.0, "kind": "run_started", "name": "made", "steps": steps}
    ]
    for step in range(1, steps + 1):
        start = 100.0 * step
        events += [
            phase(step, "generate", "device", start, start + 4),
            phase(step, "reward", "reward", start + 3, start + 6),
            phase(step, "update", "device", start + 5.5, start + 8.5),
            phase(step, "sync", "device", start + 9, start + 10),
        ]
        metrics = {
            "response_length/mean": 20.0,
            "response_length/p80": 24.0,
            "response_length/max": 44.0,
        }
        events.append(
            {
                "time": start + 10,
                "kind": "step",
                "step": step,
                "seconds": 10.0,
                "metrics": metrics,
                "passes": {"count": 2, "tokens": [100, 200], "seconds": [0.5, 0.8]},
            }
        )
        states = {
            "reward": {"wait_seconds": 3.0, "waits": {"generate": 3.0}},
            "update": {"wait_seconds": 2.0, "waits": {"reward": 2.0}},
        }
        others = dict.fromkeys(("lacking", "ready", "leased"), [0] * 6)
        rows = {
            "start": start,
            "seconds": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "states": {"generate": {**others, "done": [0, 16, 32, 36, 40, 40]}},
        }
        events.append(
            {"time": start + 10, "kind": "dock", "step": step, "states": states, "rows": rows}
        )
    return events


@pytest.fixture
def run_folder(tmp_path: Path, job_of: Callable[..., RLJob]) -> Callable[..., Path]:
    """The folder of a run of so many made steps."""

    def make(steps: int) -> Path:
        lines = [json.dumps(event) for event in made_events(steps)]
        (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
        manifest = job_of().model_dump(mode="json", by_alias=True, exclude_none=True)
        (tmp_path / "rljob.yaml").write_text(yaml.safe_dump(manifest))
        return tmp_path

    return make
