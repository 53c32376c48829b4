"""What goes wrong in a run is said in one message, and the exit code says whose fault it was."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result
from whole_runs import run

from rljob_runtime.cli.main import app


@pytest.mark.run
def test_a_run_whose_every_reward_fails_stops_and_says_why(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(
        "def reward(prompt, response, answer):\n    raise ValueError('no oracle here')\n"
    )
    job = job_file(
        rewards=[{"name": "mine", "type": "python", "python": {"path": "broken.py"}}],
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 4
    assert "rewards of 100% of the samples failed" in finished.output
    assert "spec.guards.rewardErrors" in finished.output
    assert "no oracle here" in finished.output
    (alarm,) = finished.of_kind("alarm")
    assert (alarm["alarm"], alarm["step"], alarm["policy"]) == ("rewardErrors", 1, "stop")
    assert finished.of_kind("run_finished")[-1]["status"] == "failed"


def command(job: Path, folder: Path) -> Result:
    """`rljob run` in this process: nothing is to be started."""
    return CliRunner().invoke(app, ["run", str(job), "--output", str(folder)])


def test_an_invalid_job_starts_nothing(job_file: Callable[..., Path], tmp_path: Path) -> None:
    job = job_file(batch__globalBatchSiez=8, rollout={"temperature": -1})

    finished = command(job, tmp_path / "run")

    assert finished.exit_code == 2
    assert "spec.batch.globalBatchSiez" in finished.output
    assert "globalBatchSize" in finished.output
    assert "spec.rollout.temperature" in finished.output
    assert not (tmp_path / "run").exists()


def test_what_the_runtime_cannot_do_yet_is_refused_by_name(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(resharding={"strategy": "allgather-swap"}, rollout__quantization="int8")

    finished = command(job, tmp_path / "run")

    assert finished.exit_code == 2
    assert "spec.resharding.strategy: is allgather-swap with spec.rollout.quantization: int8" in (
        " ".join(finished.output.split())
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.run
def test_device_memory_that_does_not_suffice_is_told(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(accelerator__memory="8Mi")

    finished = run(job, tmp_path / "run")

    assert finished.code in (1, 2)
    assert "spec.accelerator.memory" in finished.output
