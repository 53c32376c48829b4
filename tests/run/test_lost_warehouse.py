"""A warehouse that dies in the middle of a run costs a repeated step, not the run."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from whole_runs import finish, run, start, wait_for_event

pytestmark = [pytest.mark.ray]


def _warehouses(run_pid: int) -> list[psutil.Process]:
    family = psutil.Process(run_pid).children(recursive=True)
    return [process for process in family if "WarehouseActor" in "".join(process.cmdline())]


def test_the_step_starts_over_and_nothing_else_changes(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=60, checkpoint={})
    quiet = run(job, tmp_path / "quiet")

    process = start(job, tmp_path / "struck")
    wait_for_event(tmp_path / "struck", "step", 5, process)
    killed = _warehouses(process.pid)
    for warehouse in killed:
        warehouse.kill()
    started = time.monotonic()
    struck = finish(process, tmp_path / "struck")

    assert quiet.code == 0, quiet.output
    assert len(killed) == 1
    assert struck.code == 0, struck.output
    assert time.monotonic() - started < 150
    assert any("starts over" in event["message"] for event in struck.of_kind("warning"))
    rewards = [
        [event["metrics"]["reward/mean"] for event in finished.of_kind("step")]
        for finished in (quiet, struck)
    ]
    assert rewards[0] == rewards[1]
