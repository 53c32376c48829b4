"""What answers for a process of a run while its main thread is busy, or blocked: a thread of its own.

Started by each actor first of all. It keeps one connection to the driver's `switchboard` and sends a pulse
every PULSE_SECONDS, so that the driver knows since when a process is silent, or at once when it is
asked. A process that is stopped, or whose interpreter another thread holds, answers nothing.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.messages import PulseRequest
from rljob_runtime.errors import DockError, DockRefused
from rljob_runtime.processes.hangs.stacks import stacks_text, stands

log = logging.getLogger(__name__)

PULSE_SECONDS = 5.0
MAX_STACK_BYTES = 256 << 10
ROLE = "switchboard"

Facts = Callable[[], dict[str, Any]]
"""What else a process tells; called in the reporter's thread."""


def report(facts: Facts) -> dict[str, Any]:
    """This process now, as JSON."""
    own = stacks_text().encode(errors="replace")[:MAX_STACK_BYTES].decode(errors="ignore")
    try:
        told = facts()
    except Exception as error:  # a report without them is better than none
        told = {"facts_failed": f"{type(error).__name__}: {error}"}
    return {"stacks": own, "stands": stands(), "time": time.time(), **told}


def start_reporter(process: str, address: DockAddress, facts: Facts = dict) -> None:
    """Let this process answer as `process`, e.g. "device-0", for as long as it lives. Does nothing where
    the run has no switchboard."""
    if address.switchboard is None:
        return
    run = _Reporter(process, address, facts).run
    threading.Thread(target=run, name="hang-reporter", daemon=True).start()


class _Reporter:
    def __init__(self, process: str, address: DockAddress, facts: Facts) -> None:
        identity = ClientIdentity(owner=process, session=secrets.token_hex(8))
        self._channel = Channel(role=ROLE, find=lambda: address, identity=identity)
        self._facts = facts

    def run(self) -> None:
        """Until the switchboard refuses it, or the process ends."""
        lives = pulse = PulseRequest(pid=os.getpid(), host=socket.gethostname())
        while True:
            try:
                number = self._channel.ask(pulse, timeout_seconds=PULSE_SECONDS).ask
            except DockRefused as error:
                log.warning("%s", error)
                return
            except DockError:  # the driver is stopped, or gone, and this process soon, too
                time.sleep(1.0)
                continue
            told = report(self._facts) if number else None
            pulse = msgspec.structs.replace(lives, answers=number, report=told)
