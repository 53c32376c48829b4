"""The process above a run's drivers on Ray: starts one, and another where it is killed.

Called by the command line. It has what must outlive a driver (`processes.holder`), trains nothing and decides
nothing: a driver that ends by itself ends the run, with its exit code. The driver hears of signals from here
alone.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from types import FrameType

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.topology.resolved import resolve
from rljob_runtime.processes.holder import Holder
from rljob_runtime.run.run_request import RunRequest
from rljob_runtime.run.stop_request import FROM_ABOVE

GONE_SECONDS = 60.0
"""Until the system tells how a driver ended that has ended."""
MOST_WITHOUT_STEP = 3
"""Drivers that take over and finish no step: the next death ends the run."""


def supervise(request: RunRequest, command: Sequence[str]) -> int:
    """Train on Ray. Returns the exit code. command: of a driver; the number of this process and that of its
    pipe follow."""
    own = Supervisor(request, command)
    with own.holder, own.forwarding():
        code = own.run()
        if code == ExitCode.KILLED:  # by a second Ctrl-C, which waits for nothing
            os._exit(code)
    if code < 0:  # so that whoever started the run sees how it ended
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


class Supervisor:
    """Of one run."""

    def __init__(self, request: RunRequest, command: Sequence[str]) -> None:
        self.holder = Holder(request.packed(), resolve(request.job), request.ray_address)
        self._command = command
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Until a driver has ended by itself, or too many have died without a step between. The last one's
        return code."""
        tried, told = 0, 0
        while True:
            code = self._drive()
            if code >= 0:
                return code
            if self.holder.told != told:
                tried, told = 0, self.holder.told
            tried += 1
            if tried > MOST_WITHOUT_STEP:
                return code
            seen = f"the driver was killed by signal {-code}"
            self.holder.facts = {"seen": seen, "since": time.time()}
            sys.stderr.write(f"{self.holder.facts['seen']}; another one takes over\n")

    def _drive(self) -> int:
        """A driver's life; its return code."""
        ours, theirs = socket.socketpair()
        number = theirs.fileno()
        self.holder.listening = False
        self._driver = subprocess.Popen(
            [*self._command, str(os.getpid()), str(number)],
            pass_fds=[number],
            process_group=0,  # a terminal's Ctrl-C, and Ray's end of a job, come to it from here alone
        )
        theirs.close()
        ended = os.pidfd_open(self._driver.pid)
        try:
            with Connection(ours.detach()) as connection:
                self.holder.serve(connection, ended)
            return self._driver.wait(GONE_SECONDS)
        finally:
            os.close(ended)

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Within, the driver that lives hears of SIGINT and SIGTERM."""
        signals = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self._forward) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """A driver that does not listen yet hears of it when it does; a second time ends all at once."""
        self.holder.stops += 1
        driver = self._driver
        if self.holder.listening and driver is not None and driver.poll() is None:
            driver.send_signal(FROM_ABOVE)
        elif self.holder.stops > 1:
            os._exit(
                ExitCode.KILLED
            )  # the driver ends with this process, and the reaper ends Ray's
