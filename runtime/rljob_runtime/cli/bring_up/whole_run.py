"""Check a complete run: `rljob run` of a small job, as a user starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rljob_runtime.cli.bring_up.equipment import make_model
from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable, WrongResult
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.record.remote import EVENTS_NAME

STEPS = 3
MARGIN_SECONDS = 10.0
"""The run ends this long before the check's deadline, so that its output is recorded."""
REMOVED_VARIABLES = ("RAY_ADDRESS", "RLJOB_STATUS_PORT")
"""Environment variables of a job's pod that only its driver may use."""
RLJOB = "from rljob_runtime.cli.main import main; main()"


def quickstart(context: CheckContext) -> Figures:
    """Run STEPS steps; with several devices, two train the model with tensor parallelism. Raises
    NotApplicable for a device type that jobs do not support."""
    if context.accelerator == "cuda":
        raise NotApplicable("no job has devices of type cuda")
    make_model(context)
    file, output = context.folder / "job.yaml", context.folder / "run"
    file.write_text(yaml.safe_dump(_job(context)))
    command = [sys.executable, "-c", RLJOB, "run", str(file), "--output", str(output)]
    command += ["--local"] if context.emulated else ["--accept-untested"]
    environment = {
        name: value for name, value in os.environ.items() if name not in REMOVED_VARIABLES
    }
    completed = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment | {"RLJOB_CACHE": str(context.folder / "cache")},
        timeout=context.seconds - MARGIN_SECONDS,
        text=True,
        check=False,
    )
    sys.stderr.write(completed.stderr)
    if completed.returncode:
        last = (completed.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WrongResult(f"rljob run ended with exit code {completed.returncode}: {last}")
    return _figures(output)


def _job(context: CheckContext) -> dict[str, Any]:
    devices = min(context.devices, 2)
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
            "accelerator": {"type": context.accelerator, "devicesPerNode": devices},
        },
    }  # fmt: skip


def _figures(run: Path) -> Figures:
    events = [json.loads(line) for line in (run / EVENTS_NAME).read_text().splitlines()]
    steps = [event for event in events if event["kind"] == "step"]
    last_event = events[-1]
    if len(steps) != STEPS or last_event["kind"] != "run_finished":
        raise WrongResult(
            f"the run's events have {len(steps)} steps and end with {last_event['kind']}"
        )
    return {"steps": len(steps), "run_seconds": last_event["seconds"]}
