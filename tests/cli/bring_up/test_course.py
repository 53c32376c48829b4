"""Whatever a check does is its result, within its deadline, and nothing of it is left."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import fake_checks
import psutil
import pytest

from rljob_runtime.cli.bring_up import course
from rljob_runtime.cli.bring_up.bring_up_command import visible_type
from rljob_runtime.cli.bring_up.checks import CHECKS, FIRST, MAX_SECONDS, Check
from rljob_runtime.cli.bring_up.course import BringUpMachine, bring_up, run_check
from rljob_runtime.cli.bring_up.record import CheckOutcome, Result

Run = Callable[..., CheckOutcome]


def check(work: str, *, name: str = "", seconds: float = 20, most: int = 1) -> Check:
    return Check(
        name=name or work,
        seconds=seconds,
        work=f"fake_checks:{work}",
        summary="",
        max_processes=most,
    )


@pytest.fixture
def machine(tmp_path: Path) -> BringUpMachine:
    path = str(Path(fake_checks.__file__).parent)
    environment = os.environ | {"PYTHONPATH": path, "FOLDER": str(tmp_path)}
    return BringUpMachine(accelerator="cuda", devices=2, environment=environment)


def test_figures_reasons_and_errors_are_told(machine: BringUpMachine) -> None:
    passed, without, failed = (run_check(check(n), machine) for n in ("counts", "lacks", "raises"))

    assert (passed.result, passed.figures["devices"]) == (Result.PASSED, 2)
    assert (without.result, without.error) == (Result.NOT_APPLICABLE, "nothing to look at")
    assert (failed.result, failed.error) == (Result.FAILED, "ValueError: 7 is not 8")
    assert "fake_checks.py" in failed.output


def test_a_crash_is_a_result(machine: BringUpMachine) -> None:
    died, left = (run_check(check(name), machine) for name in ("dies", "leaves"))

    assert (died.result, left.result) == (Result.FAILED, Result.FAILED)
    assert died.error == "its process was ended by SIGSEGV"
    assert "before the end" in died.output
    assert left.error == "its process ended with exit status 3, and said no result"


def test_what_hangs_ends_at_its_deadline_with_all_that_it_started(
    machine: BringUpMachine, tmp_path: Path
) -> None:
    outcome = run_check(check("hangs", seconds=2), machine)

    assert (outcome.result, outcome.error) == (Result.FAILED, "no end within 2 s")
    assert "in hangs" in outcome.output  # where it stood
    sleeper = int((tmp_path / "sleeper").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(sleeper) and time.monotonic() < deadline:
        time.sleep(0.02)  # the system reaps it
    assert not psutil.pid_exists(sleeper)


def test_processes_that_wait_for_one_that_failed_end_soon(
    machine: BringUpMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "GRACE_SECONDS", 0.2)

    outcome = run_check(check("one_raises", seconds=600, most=2), machine)

    assert outcome.error == "process 1 of 2: ValueError: no link"
    assert outcome.seconds < 60


@pytest.mark.parametrize(("given", "seen"), [("", ["0", "1"]), ("4,7", ["4", "7"])])
def test_each_process_of_several_has_a_device_of_its_own(
    machine: BringUpMachine, given: str, seen: list[str]
) -> None:
    own = BringUpMachine(
        accelerator="cuda",
        devices=2,
        environment={**machine.environment, "CUDA_VISIBLE_DEVICES": given},
    )

    assert run_check(check("sees", most=8), own).figures["seen"] == seen


def test_without_a_device_no_other_check_begins(machine: BringUpMachine) -> None:
    unseen = BringUpMachine(accelerator="cuda", devices=None, environment=machine.environment)
    table = (check("raises", name=FIRST), check("counts"))

    first, second = bring_up(unseen, ["counts"], table=table)

    assert first.result is Result.FAILED
    assert (second.result, second.error) == (
        Result.SKIPPED,
        f"no device could be used (check {FIRST})",
    )


def test_checks_go_on_behind_one_that_failed_and_others_were_not_asked_for(
    machine: BringUpMachine,
) -> None:
    unseen = BringUpMachine(accelerator="cuda", devices=None, environment=machine.environment)
    table = tuple(map(check, ("raises", "lacks", "leaves")))
    first = check("counts", name=FIRST)

    outcomes = list(bring_up(unseen, ["raises", "lacks"], table=(first, *table)))

    assert [one.result for one in outcomes] == ["passed", "failed", "not applicable", "skipped"]


def test_the_table_fits_into_the_time_that_users_are_asked_for() -> None:
    assert sum(check.seconds for check in CHECKS) <= MAX_SECONDS
    assert len({check.name for check in CHECKS}) == len(CHECKS)


def test_files_of_emulated_devices_are_no_npus(tmp_path: Path) -> None:
    for name in ("null", "davinci0"):
        (tmp_path / name).symlink_to("/dev/null")
    emulated = visible_type(tmp_path)
    (tmp_path / "davinci1").symlink_to("/dev/zero")

    assert (emulated, visible_type(tmp_path)) == ("emulated", "ascend")
