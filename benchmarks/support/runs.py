"""Whole runs of a job through the command line, for benchmarks of a step."""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from rljob_runtime.record.events import read_events
from rljob_runtime.report.display.history import RunHistory

QUARTERS = 4


def steps_of(job: dict[str, Any], folder: Path, name: str) -> list[dict[str, Any]]:
    """Run a job in `folder` under that name. Returns the events of its steps."""
    return [event for event in events_of(job, folder, name) if event["kind"] == "step"]


def history_of(job: dict[str, Any], folder: Path, name: str) -> RunHistory:
    """Likewise, folded."""
    events_of(job, folder, name)
    return RunHistory.of(read_events(folder / name / "events.jsonl"))


def events_of(job: dict[str, Any], folder: Path, name: str, *options: str) -> list[dict[str, Any]]:
    """Run a job in `folder` under that name. Returns all of its events. options: of `rljob run`."""
    file, output = folder / f"{name}.yaml", folder / name
    file.write_text(yaml.safe_dump(job))
    command = [str(Path(sys.executable).with_name("rljob")), "run", str(file), *options]
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


def gain_of(job: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """Run a job with an evaluation without Ray: its accuracy before and after, held-out prompts, and the
    reward of each step."""
    events = events_of(job, folder, name, "--local")
    first, *_, last = (event for event in events if event["kind"] == "evaluation")
    return {
        "before": first["accuracy"],
        "after": last["accuracy"],
        "prompts": last["n"],
        "reward": [round(e["metrics"]["reward/mean"], 4) for e in events if e["kind"] == "step"],
    }


def seconds_a_step(ends: Sequence[float], *, warm_up: int) -> float:
    """Mean time from the end of one step to the next one's, without the first steps."""
    counted = ends[warm_up - 1 :]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


def reward_windows(
    runs: Sequence[Mapping[str, Any]], number: int
) -> list[tuple[float, list[float]]]:
    """The middle of each of so many windows of steps, and every run's mean `reward` in it."""
    steps = len(runs[0]["reward"])
    ends = [steps * place // number for place in range(number + 1)]
    return [
        ((low + high) / 2, [mean(run["reward"][low:high]) for run in runs])
        for low, high in itertools.pairwise(ends)
        if high > low
    ]


def quarters(values: Sequence[float]) -> list[float]:
    """Means of each quarter of the steps' values; as many as there are values where these are fewer."""
    parts = min(QUARTERS, len(values))
    ends = [len(values) * number // parts for number in range(parts + 1)]
    return [mean(values[low:high]) for low, high in itertools.pairwise(ends)]
