"""The process above drivers: which ends of theirs end the run, and what it has for the next one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.run.run_request import RunRequest
from rljob_runtime.run.supervisor import Supervisor

LIFE = """
import os, pickle, signal, sys, time
from pathlib import Path
from rljob_runtime.processes.link import Link
link, lives = Link.inherited(int(sys.argv[-1])), Path({lives!r})
with lives.open("a") as file:
    file.write(f"{{os.getpid()}}\\n")
life = len(lives.read_text().splitlines())
kept = {{name: pickle.loads(value) for name, value in link.kept().items()}}

def die():
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

"""


def request(folder: Path) -> RunRequest:
    return RunRequest(
        job=read_job(SMALL_JOB),
        job_file=folder / "job.yaml",
        output=folder / "run",
        resume="no",
        cache_dir=folder,
        ray_address=None,
    )


def supervisor(folder: Path, body: str) -> Supervisor:
    """Of drivers that do this; `lives` in the folder has their pids."""
    code = LIFE.format(lives=str(folder / "lives")) + body
    return Supervisor(request(folder), [sys.executable, "-c", code])


def lives(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "lives").read_text().splitlines()]


@pytest.mark.parametrize("code", [ExitCode.DONE, ExitCode.FAILED, ExitCode.HUNG])
def test_a_driver_that_ends_by_itself_ends_the_run_with_its_exit_code(
    code: ExitCode, tmp_path: Path
) -> None:
    assert supervisor(tmp_path, f"sys.exit({int(code)})").run() == code
    assert len(lives(tmp_path)) == 1


def test_after_three_that_took_over_and_finished_no_step_the_run_ends_as_they_did(
    tmp_path: Path,
) -> None:
    assert supervisor(tmp_path, "link.keep(7)\ndie()").run() == -signal.SIGKILL

    assert len(lives(tmp_path)) == 4


def test_as_long_as_steps_are_finished_others_take_over(tmp_path: Path) -> None:
    body = "link.keep(life // 3)\nsys.exit(0) if life == 9 else die()"

    assert supervisor(tmp_path, body).run() == 0


def test_the_next_driver_finds_what_was_kept_and_hears_how_the_one_before_died(
    tmp_path: Path,
) -> None:
    body = """
if life == 1:
    assert link.ask("who_died") == {} == kept
    link.keep(1, place=[4], other="a" * 10**6)
    link.keep(2, place=[5])
    ports = link.hold_ports(2)
    link.keep(ports=ports)
    link._connection._send((10**6).to_bytes(4, "big") + b"cut in the midst of a word")
    die()
assert link.ask("who_died")["seen"] == "the driver was killed by signal 9"
assert (kept["place"], kept["other"], len(set(kept["ports"]))) == ([5], "a" * 10**6, 2)
"""

    assert supervisor(tmp_path, body).run() == 0


def test_what_goes_wrong_above_is_raised_in_the_driver(tmp_path: Path) -> None:
    body = """
from rljob_runtime.errors import DockError, WorkerFailed
try:
    link.hold_ports(10**5)
except DockError as error:
    assert "fewer than 100000 of the ports" in str(error)
try:
    link.ask("own_folder", 1, 2)
except WorkerFailed as error:
    assert "TypeError" in str(error)
    sys.exit(17)
"""

    assert supervisor(tmp_path, body).run() == 17


def test_a_request_to_stop_reaches_a_driver_that_comes_later(tmp_path: Path) -> None:
    body = """
heard = []
signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
if life == 1:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0.5)
    assert link.ask("listens") == 1 and not heard
    die()
assert link.ask("listens") == 1
os.kill(os.getppid(), signal.SIGTERM)
deadline = time.monotonic() + 30
while not heard and time.monotonic() < deadline:
    time.sleep(0.01)
sys.exit(len(heard) + 20)
"""
    own = supervisor(tmp_path, body)

    with own.forwarding():
        assert own.run() == 21


def test_a_signal_to_all_processes_of_a_run_is_one_request_to_stop(tmp_path: Path) -> None:
    """Ray ends a job so."""
    body = """
from rljob_runtime.run.stop_request import StopRequest, stop_signals
stop = StopRequest()
with stop_signals(stop, from_above=True):
    link.ask("listens")
    os.kill(os.getpid(), signal.SIGTERM)
    assert not stop.requested
    os.kill(os.getppid(), signal.SIGTERM)
    deadline = time.monotonic() + 30
    while not stop.requested and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(20 + stop.requested)
"""
    own = supervisor(tmp_path, body)

    with own.forwarding():
        assert own.run() == 21


def test_a_driver_ends_with_the_process_above_it(tmp_path: Path) -> None:
    code = LIFE.format(lives=str(tmp_path / "lives")) + "time.sleep(300)"
    code = (
        "from rljob_runtime.children.forked_children import end_with_parent\nend_with_parent()"
        + code
    )
    above = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from test_supervisor import Supervisor, request
Supervisor(request(Path({str(tmp_path)!r})), [sys.executable, "-c", {code!r}]).run()
"""
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", above], env=place)
    deadline = time.monotonic() + 60
    while not (tmp_path / "lives").exists() or not lives(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)

    process.kill()
    process.wait(60)

    while psutil.pid_exists(lives(tmp_path)[0]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
