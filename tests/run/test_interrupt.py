"""Ctrl-C: once, the run leaves with a checkpoint; twice, it ends at once. Nothing is left running."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import finish, run, session_processes, start, wait_for_event, wait_for_text

pytestmark = [pytest.mark.ray]


def _gone_within(session: int, seconds: float) -> list[str]:
    """Processes of the session that are still there after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and session_processes(session):
        time.sleep(0.2)
    return session_processes(session)


def test_one_interrupt_checkpoints_and_the_run_goes_on_later(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(job_file(steps=2000, checkpoint={"every": 2000}), folder)
    wait_for_event(folder, "step", 2, process)

    process.send_signal(signal.SIGINT)
    interrupted = finish(process, folder)
    left = _gone_within(process.pid, 30)
    saved = max(event["step"] for event in interrupted.of_kind("checkpoint"))
    more = job_file(steps=saved + 2, checkpoint={"every": 2000})
    resumed = run(more, folder, "--resume")

    assert interrupted.code == 3, interrupted.output
    assert left == []
    assert saved >= 2
    assert resumed.code == 0, resumed.output
    assert [event["step"] for event in resumed.of_kind("step")] == list(range(1, saved + 3))


def test_a_second_interrupt_ends_at_once(job_file: Callable[..., Path], tmp_path: Path) -> None:
    job = job_file(steps=2000)
    folder = tmp_path / "run"
    process = start(job, folder)
    wait_for_event(folder, "step", 1, process)

    process.send_signal(signal.SIGINT)
    wait_for_text(folder, "Ctrl-C again ends at once", process)
    process.send_signal(signal.SIGINT)
    ended = finish(process, folder, timeout=60)

    assert ended.code == 130
    assert _gone_within(process.pid, 30) == []


def test_kill_leaves_no_processes(job_file: Callable[..., Path], tmp_path: Path) -> None:
    job = job_file(steps=200)
    folder = tmp_path / "run"
    process = start(job, folder)
    wait_for_event(folder, "step", 1, process)

    process.kill()
    process.wait()

    assert _gone_within(process.pid, 30) == []
