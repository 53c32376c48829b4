"""End the processes that a run left behind.

Ray's processes end with their driver, but some of them only when the driver shuts Ray down. `Reaper`
starts `python -m rljob_runtime.processes.reaper` beside the run and sends it every descendant. If its
pipe closes without a goodbye (kill -9, a second Ctrl-C), it ends those that still run. After a goodbye it
first waits a moment: an actor of Ray was seen to outlive all of Ray.
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
"""Processes that still run so long after a goodbye are ended."""
TRACKER_MODULE = "rljob_runtime.report.tracking.tracker_child"
"""Processes of trackers still send data after Ray has ended, and end with the run without being
killed."""

log = logging.getLogger(__name__)


class Reaper:
    """The run's end of the pipe. Descendants of this process that are older than the reaper do not
    belong to the run."""

    def __init__(self) -> None:
        self._older = _descendants()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )

    def watch_descendants(self) -> None:
        """Send the reaper every process below this one that started after it."""
        for process in _descendants() - self._older:
            if not process.startswith(f"{self._process.pid} "):
                self._send(process)

    def dismiss(self) -> None:
        """Send the goodbye after Ray was shut down. Returns when every process has ended, or after a
        deadline."""
        self._send(GOODBYE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            log.warning("reaper pid=%d still ends what the run left behind", self._process.pid)

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def _descendants() -> set[str]:
    """Return pid and start time of every process below this one, except trackers. Pids alone are
    reused."""
    descendants, spared = set(), set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants.add(_identity(process))
            if TRACKER_MODULE in process.cmdline():
                tracker = [process, *process.children(recursive=True)]
                spared |= {_identity(each) for each in tracker}
    return descendants - spared


def _identity(process: psutil.Process) -> str:
    return f"{process.pid} {start_of(process)}"


def survivors(lines: Iterable[str]) -> list[psutil.Process]:
    """Return the listed processes that still run, without reused pids and without zombies."""
    running = []
    for line in lines:
        pid, created = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if is_same(process, float(created)) and process.status() != psutil.STATUS_ZOMBIE:
                running.append(process)
    return running


def main() -> None:
    """Wait for the pipe's end, then kill the survivors; after a goodbye, only those that do not end in
    time."""
    lines = [line.strip() for line in sys.stdin]
    if lines and lines[-1] == GOODBYE:
        lines.pop()
        deadline = time.monotonic() + LEAVE_SECONDS
        while survivors(lines) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    for _ in range(KILL_ROUNDS):
        if not (remaining := survivors(lines)):
            return
        for process in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
