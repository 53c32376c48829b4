"""A process that ends what a dead run left behind.

Ray's processes end with their driver, but some of them only when the driver says goodbye. `Guardian`
starts `python -m rljob_runtime.guardian` beside the run and tells it every descendant; when its pipe
closes without a goodbye (kill -9, a second Ctrl-C), it ends those that are still there.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable

import psutil

GOODBYE = "goodbye"
KILL_ROUNDS = 3


class Guardian:
    """The run's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a terminal's Ctrl-C is not for it
        )

    def watch_descendants(self) -> None:
        """Tell the guardian every process below this one."""
        for process in psutil.Process().children(recursive=True):
            if process.pid != self._process.pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._say(f"{process.pid} {process.create_time()}")

    def dismiss(self) -> None:
        """Everything ended as it should."""
        self._say(GOODBYE)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=10)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()


def survivors(lines: Iterable[str]) -> list[psutil.Process]:
    """The named processes that still run; a reused pid is not one of them."""
    found = []
    for line in lines:
        pid, created = line.split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(created)) < 0.01:
                found.append(process)
    return found


def main() -> None:
    """Wait for the pipe's end; then end the survivors unless the run said goodbye."""
    lines = [line.strip() for line in sys.stdin]
    if lines and lines[-1] == GOODBYE:
        return
    for _ in range(KILL_ROUNDS):
        for process in survivors(lines):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
