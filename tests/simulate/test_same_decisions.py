"""A simulated driver asks its workers for the same as a real one: the code that decides is one."""

import json
from pathlib import Path

import pytest
import yaml
from recorded_calls import Decision, LocalRecorder, RecordedWorkers
from whole_runs import SMALL_JOB, run

from rljob_api.check.load import load_job
from rljob_runtime.simulate.costs import planned
from rljob_runtime.simulate.draws import FixedLengths
from rljob_runtime.simulate.run import simulate

ABOUT_STEPS = {
    "facts", "sync", "feed", "generate", "score", "infer", "update", "save", "drop", "peaks", "traffic",
}  # fmt: skip


def test_the_simulated_driver_makes_the_calls_of_the_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call to each worker, in order, from the first that is started to the last checkpoint."""
    file, recorder = tmp_path / "job.yaml", LocalRecorder()
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"] |= {
        "steps": 3,
        "checkpoint": {"every": 2},
        "evaluation": {"prompts": 8, "every": 2},
    }
    job["spec"]["algorithm"] = {"name": "grpo", "params": {"klCoefficient": 0.01}}
    file.write_text(yaml.safe_dump(job))
    monkeypatch.setattr("rljob_runtime.processes.session.LocalWorkers", recorder)

    real = run(file, tmp_path / "real")
    simulated = decisions_of_twin(file, tmp_path / "simulated")

    assert real.code == 0, real.output
    assert simulated == recorder.decisions
    assert {what for _, what, _ in simulated} >= ABOUT_STEPS - {"drop"}


def decisions_of_twin(file: Path, folder: Path) -> list[Decision]:
    """Of the same job in virtual time."""
    folder.mkdir()
    found: list[Decision] = []
    resolved, costs, _ = planned(load_job(file), base_dir=file.parent)
    simulate(
        resolved,
        costs=costs,
        lengths=FixedLengths(4),
        seed=1,
        folder=folder,
        around=lambda workers: RecordedWorkers(workers, found),
    )
    return found
