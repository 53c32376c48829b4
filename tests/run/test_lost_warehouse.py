"""A warehouse that dies in the middle of a run costs a repeated step, not the run."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import (
    STARTS_OVER,
    WAIT_SECONDS,
    DriverHere,
    lose_rows,
    run,
    run_while,
    steps_done,
    wait_for_event,
    warehouses,
)

pytestmark = [pytest.mark.run]


def wait_until_held_twice(folder: Path, driver: DriverHere) -> None:
    """Return once a step that began later ends with all rows in both warehouses."""
    steps, deadline = steps_done(folder), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and driver.poll() is None:
        docks = [
            json.loads(line)
            for line in (folder / "events.jsonl").read_text().splitlines()
            if '"kind":"dock"' in line
        ]
        later = [dock["warehouses"] for dock in docks if dock["step"] > steps + 1]
        if later and all(warehouse["replicated"] for warehouse in later[-1]):
            return
        time.sleep(0.05)
    raise AssertionError("rows are not held twice again")


def test_the_step_starts_over_and_nothing_else_changes(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=14, checkpoint={})
    quiet = run(job, tmp_path / "quiet")

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 2, driver)
        lose_rows(driver, tmp_path / "struck")

    struck = run_while(job, tmp_path / "struck", beside=strike)

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
    job = job_file(steps=16, checkpoint={}, dock={"warehouses": 2, "replicas": 2})

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "struck", "step", 2, driver)
        for _ in range(3):
            warehouses(driver)[0].kill()
            wait_until_held_twice(tmp_path / "struck", driver)

    struck = run_while(job, tmp_path / "struck", beside=strike)

    assert struck.code == 0, struck.output
    assert len(struck.of_kind("step")) == 16
    assert [e["message"] for e in struck.of_kind("warning") if STARTS_OVER in e["message"]] == []
    told = [warehouse for event in struck.of_kind("dock") for warehouse in event["warehouses"]]
    assert max(warehouse["times_alone"] for warehouse in told) >= 1
    assert any(warehouse["replicated"] for warehouse in told)
