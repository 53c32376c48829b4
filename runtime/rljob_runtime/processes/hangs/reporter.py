"""Answer for a process of a run in a separate thread while its main thread is busy or blocked.

Each actor starts it first of all. It keeps one connection to the driver's `switchboard` and sends a pulse
every PULSE_SECONDS, and immediately when it is asked for a report. So the driver can tell since when a
process is silent. A process that is stopped, or whose interpreter is held by another thread, answers
nothing.
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
"""Returns further facts about a process; called in the reporter's thread."""


def report(facts: Facts) -> dict[str, Any]:
    """Return the current state of this process as JSON."""
    stacks = stacks_text().encode(errors="replace")[:MAX_STACK_BYTES].decode(errors="ignore")
    try:
        details = facts()
    except Exception as error:  # a report without them is better than none
        details = {"facts_failed": f"{type(error).__name__}: {error}"}
    return {"stacks": stacks, "stands": stands(), "time": time.time(), **details}


def start_reporter(process: str, address: DockAddress, facts: Facts = dict) -> None:
    """Start to answer as `process`, for example "device-0", until this process ends. Does nothing if
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
        """Send pulses until the switchboard refuses them, or the process ends."""
        heartbeat = pulse = PulseRequest(pid=os.getpid(), host=socket.gethostname())
        while True:
            try:
                number = self._channel.ask(pulse, timeout_seconds=PULSE_SECONDS).ask
            except DockRefused as error:
                log.warning("%s", error)
                return
            except DockError:  # the driver has stopped or ended, and this process soon will
                time.sleep(1.0)
                continue
            contents = report(self._facts) if number else None
            pulse = msgspec.structs.replace(heartbeat, answers=number, report=contents)
