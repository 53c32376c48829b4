"""Nothing that a run started is there after it, however it ended.

The runs are processes of their own: a reaper ends all that its process started.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rljob_runtime.children.process_start import is_same, start_of
from rljob_runtime.processes.reaper import TRACKER_MODULE, Reaper

LEFT_BEHIND = str(Path(__file__).with_name("left_behind.py"))


@pytest.fixture
def run() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, LEFT_BEHIND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def processes(run) -> Iterator[tuple[psutil.Process, psutil.Process]]:
    """What the run's process had before it, and what the run started and does not end."""
    pids = run.stdout.readline().split()
    found = psutil.Process(int(pids[0])), psutil.Process(int(pids[1]))
    yield found
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def ended(process: psutil.Process) -> bool:
    """Whether it is gone within 20 s; one that ended and that nobody waits for is gone."""
    deadline = time.monotonic() + 20
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
    return True


def test_what_outlives_a_goodbye_is_ended(run, processes) -> None:
    older, left = processes

    run.communicate("goodbye\n", timeout=60)

    assert ended(left)
    assert older.is_running()


def test_what_a_killed_run_left_is_ended(run, processes) -> None:
    older, left = processes

    run.kill()

    assert ended(left)
    assert older.is_running()


def test_a_process_with_a_pid_that_was_named_is_not_ended_for_it(run, processes) -> None:
    _, left = processes
    reaper = Reaper()
    reaper._send(f"{left.pid} {start_of(left) - 5}")

    reaper.dismiss()

    assert left.is_running()


def test_a_process_is_known_again_after_the_clock_was_set(processes, monkeypatch) -> None:
    _, process = processes
    start, booted = start_of(psutil.Process(process.pid)), psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: booted + 3600)

    again = psutil.Process(process.pid)

    assert again.create_time() != pytest.approx(start + booted)
    assert is_same(again, start)
    assert not is_same(psutil.Process(), start)


def test_a_trackers_process_outlives_the_reaper() -> None:
    reaper = Reaper()
    tracker = subprocess.Popen([sys.executable, "-m", TRACKER_MODULE], stdin=subprocess.PIPE)
    other = subprocess.Popen(["sleep", "60"])
    reaper.watch_descendants()

    reaper.dismiss()

    assert other.wait(20) < 0
    assert tracker.poll() is None
    tracker.communicate(timeout=60)
