"""A warehouse that dies in the middle of a run costs a repeated step, not the run."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from whole_runs import finish, run, start, wait_for_event

pytestmark = [pytest.mark.ray]


STARTS_OVER = "starts over"


def _warehouses(run_pid: int) -> list[psutil.Process]:
    family = psutil.Process(run_pid).children(recursive=True)
    return [
        process
        for process in family
        if "WarehouseActor" in "".join(process.cmdline()) or process.name().startswith("warehouse-")
    ]


def _kill_until_rows_are_lost(process: subprocess.Popen[str], folder: Path) -> None:
    """Between two steps a warehouse is empty and its death costs nothing; then strike again."""
    events = folder / "events.jsonl"
    for _ in range(20):
        for warehouse in _warehouses(process.pid):
            warehouse.kill()
        steps = events.read_text().count('"kind":"step"')
        while events.read_text().count('"kind":"step"') < steps + 2:
            if STARTS_OVER in events.read_text():
                return
            assert process.poll() is None, "the run ended before a row was lost"
            time.sleep(0.02)


def test_the_step_starts_over_and_nothing_else_changes(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=40, checkpoint={})
    quiet = run(job, tmp_path / "quiet")

    process = start(job, tmp_path / "struck", ray=True)
    wait_for_event(tmp_path / "struck", "step", 5, process)
    _kill_until_rows_are_lost(process, tmp_path / "struck")
    struck = finish(process, tmp_path / "struck")

    assert quiet.code == 0, quiet.output
    assert struck.code == 0, struck.output
    (why, *_) = [e["message"] for e in struck.of_kind("warning") if STARTS_OVER in e["message"]]
    assert "Traceback" not in why and "ray::" not in why
    rewards = [
        [event["metrics"]["reward/mean"] for event in finished.of_kind("step")]
        for finished in (quiet, struck)
    ]
    assert rewards[0] == rewards[1]


def test_with_two_copies_of_each_row_no_step_starts_over(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=30, checkpoint={}, dock={"warehouses": 2, "replicas": 2})

    process = start(job, tmp_path / "struck")
    for steps in (3, 8, 13):
        wait_for_event(tmp_path / "struck", "step", steps, process)
        _warehouses(process.pid)[0].kill()
    struck = finish(process, tmp_path / "struck")

    assert struck.code == 0, struck.output
    assert len(struck.of_kind("step")) == 30
    assert [e["message"] for e in struck.of_kind("warning") if STARTS_OVER in e["message"]] == []
    told = [warehouse for event in struck.of_kind("dock") for warehouse in event["warehouses"]]
    assert max(warehouse["times_alone"] for warehouse in told) >= 1
    assert any(warehouse["replicated"] for warehouse in told)
