"""The check of a whole run: `rljob run` of a small job, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.cli.bring_up.equipment import make_model
from rljob_runtime.cli.bring_up.place import Differs, NotApplicable, Place
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.record.remote import EVENTS_NAME

STEPS = 3
MARGIN_SECONDS = 10.0
"""Before the check's own deadline, so that what the run says is kept."""
SPARED = ("RAY_ADDRESS", "RLJOB_STATUS_PORT")
"""Variables of a job's pod, which its driver alone may take for its own."""
RLJOB = "from rljob_runtime.cli.main import main; main()"


def quickstart(place: Place) -> Figures:
    """STEPS steps; with several devices, two that share the model in training. Raises NotApplicable for
    devices that no job has."""
    if place.accelerator == "cuda":
        raise NotApplicable("no job has devices of type cuda")
    make_model(place)
    file, output = place.folder / "job.yaml", place.folder / "run"
    file.write_text(yaml.safe_dump(_job(place)))
    command = [sys.executable, "-c", RLJOB, "run", str(file), "--output", str(output)]
    command += ["--local"] if place.emulated else ["--accept-untested"]
    environment = {name: value for name, value in os.environ.items() if name not in SPARED}
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment | {"RLJOB_CACHE": str(place.folder / "cache")},
        timeout=place.seconds - MARGIN_SECONDS,
        text=True,
        check=False,
    )
    sys.stderr.write(ended.stderr)
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Differs(f"rljob run ended with exit code {ended.returncode}: {last}")
    return _figures(output)


def _job(place: Place) -> dict[str, Any]:
    devices = min(place.devices, 2)
    return {
        "apiVersion": "rljob.io/v1beta1", "kind": "RLJob", "metadata": {"name": "bring-up"},
        "spec": {
            "steps": STEPS,
            "model": {"path": "model"},
            "data": {
                "reasoningGym": {
                    "dataset": "spell_backward", "params": {"min_word_len": 3, "max_word_len": 5},
                },
                "template": "{word}=",
            },
            "rewards": [{"name": "correct", "type": "dataset"}],
            "batch": {
                "globalBatchSize": 4, "samplesPerPrompt": 4, "maxPromptLength": 16,
                "maxResponseLength": 16,
            },
            "update": {"parallelism": {"tensor": devices}},
            "accelerator": {"type": place.accelerator, "devicesPerNode": devices},
        },
    }  # fmt: skip


def _figures(run: Path) -> Figures:
    events = [json.loads(line) for line in (run / EVENTS_NAME).read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    ended = events[-1]
    if len(steps) != STEPS or ended["kind"] != "run_finished":
        raise Differs(f"the run's events have {len(steps)} steps and end with {ended['kind']}")
    return {"steps": len(steps), "run_seconds": ended["seconds"]}
