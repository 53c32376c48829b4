"""The process above a run's drivers on Ray: it starts one, and another if that is killed.

The command line calls it. It owns what must outlive a driver (`processes.holder`); it neither trains nor
decides. A driver that ends regularly ends the run, with its exit code. Only this process forwards signals to
the driver.
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
"""How long the system may take to report the exit status of a driver that has ended."""
MOST_WITHOUT_STEP = 3
"""Drivers that take over and finish no step: the next death ends the run."""


def supervise(request: RunRequest, command: Sequence[str]) -> int:
    """Train on Ray. Returns the exit code. command: that of a driver; the number of this process and that of
    its pipe are appended."""
    supervisor = Supervisor(request, command)
    with supervisor.holder, supervisor.forwarding():
        code = supervisor.run()
        if code == ExitCode.KILLED:  # by a second Ctrl-C, which does not wait
            os._exit(code)
    if code < 0:  # so that the parent process sees how the run ended
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


class Supervisor:
    """The supervisor of one run's drivers."""

    def __init__(self, request: RunRequest, command: Sequence[str]) -> None:
        self.holder = Holder(request.packed(), resolve(request.job), request.ray_address)
        self._command = command
        self._driver: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run drivers until one has ended regularly, or too many have died without a step between. Returns
        the last one's return code."""
        attempts, reported_steps = 0, 0
        while True:
            code = self._drive()
            if code >= 0:
                return code
            if self.holder.told != reported_steps:
                attempts, reported_steps = 0, self.holder.told
            attempts += 1
            if attempts > MOST_WITHOUT_STEP:
                return code
            description = f"the driver was killed by signal {-code}"
            self.holder.facts = {"seen": description, "since": time.time()}
            sys.stderr.write(f"{self.holder.facts['seen']}; another one takes over\n")

    def _drive(self) -> int:
        """Run one driver until it ends, and return its return code."""
        parent_end, driver_end = socket.socketpair()
        descriptor = driver_end.fileno()
        self.holder.listening = False
        self._driver = subprocess.Popen(
            [*self._command, str(os.getpid()), str(descriptor)],
            pass_fds=[descriptor],
            process_group=0,  # Ctrl-C and Ray's end of a job reach it only from here
        )
        driver_end.close()
        exit_descriptor = os.pidfd_open(self._driver.pid)
        try:
            with Connection(parent_end.detach()) as connection:
                self.holder.serve(connection, exit_descriptor)
            return self._driver.wait(GONE_SECONDS)
        finally:
            os.close(exit_descriptor)

    @contextlib.contextmanager
    def forwarding(self) -> Iterator[None]:
        """Forward SIGINT and SIGTERM to the living driver within the body."""
        signals = (signal.SIGINT, signal.SIGTERM)
        previous = {number: signal.signal(number, self._forward) for number in signals}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Forward a signal. A driver that does not listen yet gets it when it does; a second signal ends
        everything."""
        self.holder.stops += 1
        driver = self._driver
        if self.holder.listening and driver is not None and driver.poll() is None:
            driver.send_signal(FROM_ABOVE)
        elif self.holder.stops > 1:
            os._exit(
                ExitCode.KILLED
            )  # the driver ends with this process, and the reaper ends Ray's
