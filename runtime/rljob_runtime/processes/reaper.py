"""A process that ends what a run left behind.

Ray's processes end with their driver, but some of them only when the driver says goodbye. `Reaper` starts
`python -m rljob_runtime.processes.reaper` beside the run and tells it every descendant; when its pipe
closes without a goodbye (kill -9, a second Ctrl-C), it ends those that are still there. After a goodbye it
gives them a moment first: an actor of Ray was seen to outlive all of Ray.
"""

import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Iterable

import psutil

from rljob_runtime.children.process_start import is_same, start_of

GOODBYE = "goodbye"
KILL_ROUNDS = 3
LOOK_SECONDS = 0.05
LEAVE_SECONDS = 5.0
"""What is not gone so long after a goodbye is ended."""
OF_TRACKERS = "rljob_runtime.report.tracking.tracker_child"
"""Processes of trackers have something to tell when Ray is gone, and end with the run by themselves."""

log = logging.getLogger(__name__)


class Reaper:
    """The run's end of the pipe. Processes below this one that are older than it are none of its own."""

    def __init__(self) -> None:
        self._older = _descendants()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )

    def watch_descendants(self) -> None:
        """Tell the reaper every process below this one that came after it."""
        for process in _descendants() - self._older:
            if not process.startswith(f"{self._process.pid} "):
                self._say(process)

    def dismiss(self) -> None:
        """Ray was shut down; returns when every process is gone, or a while later."""
        self._say(GOODBYE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            log.warning("reaper pid=%d still ends what the run left behind", self._process.pid)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def _descendants() -> set[str]:
    """pid and time of birth of every process below this one, but trackers': pids are used again."""
    found, spared = set(), set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(_name(process))
            if OF_TRACKERS in process.cmdline():
                own = [process, *process.children(recursive=True)]
                spared |= {_name(each) for each in own}
    return found - spared


def _name(process: psutil.Process) -> str:
    return f"{process.pid} {start_of(process)}"


def survivors(lines: Iterable[str]) -> list[psutil.Process]:
    """The named processes that still run; neither a reused pid nor one that only waits to be reaped is."""
    found = []
    for line in lines:
        pid, created = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if is_same(process, float(created)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def main() -> None:
    """Wait for the pipe's end; then end the survivors, after a goodbye those that do not leave."""
    lines = [line.strip() for line in sys.stdin]
    if lines and lines[-1] == GOODBYE:
        lines.pop()
        deadline = time.monotonic() + LEAVE_SECONDS
        while survivors(lines) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    for _ in range(KILL_ROUNDS):
        if not (left := survivors(lines)):
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
