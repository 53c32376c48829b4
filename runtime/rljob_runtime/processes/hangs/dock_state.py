"""Request the state of all servers of a dock concurrently, so that a silent one delays no other.
Called by `dump`."""

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.messages import Inspect
from rljob_runtime.errors import DockError


class DockQuestion:
    """A request to all servers of a dock, sent when it is created; `answers` waits for the results."""

    def __init__(self, address: DockAddress, *, seconds: float) -> None:
        self._find_dock: Callable[[], DockAddress] = lambda: address
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        warehouses = [f"warehouse/{index}" for index in range(len(address.warehouses))]
        roles = [*warehouses, *(f"controller/{state}" for state in address.controllers)]
        self._states: dict[str, dict[str, Any]] = {}
        self._threads = {
            role: threading.Thread(target=self._ask, args=(role,), name="hang-dock", daemon=True)
            for role in roles
        }
        for thread in self._threads.values():
            thread.start()

    def answers(self) -> dict[str, dict[str, Any]]:
        """Return the answers by role, with an `error` for servers that did not answer in time."""
        for thread in self._threads.values():
            thread.join(max(0.0, self._deadline - time.monotonic()))
        states = dict(self._states)
        silent = {"error": f"did not answer within {self._seconds:g} s"}
        return {role: states.get(role, silent) for role in self._threads}

    def _ask(self, role: str) -> None:
        identity = ClientIdentity(owner="hangs", session=secrets.token_hex(8))
        channel = Channel(role=role, find=self._find_dock, identity=identity)
        try:
            self._states[role] = channel.ask(Inspect(), timeout_seconds=self._seconds).told
        except DockError as error:
            self._states[role] = {"error": str(error)}
        finally:
            channel.close()
