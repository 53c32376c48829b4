"""Ask all servers of a dock at once what they hold; who is silent delays nobody. Called by `dump`."""

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
    """Asked when it is made; `answers` waits."""

    def __init__(self, address: DockAddress, *, seconds: float) -> None:
        self._find: Callable[[], DockAddress] = lambda: address
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        warehouses = [f"warehouse/{index}" for index in range(len(address.warehouses))]
        roles = [*warehouses, *(f"controller/{state}" for state in address.controllers)]
        self._told: dict[str, dict[str, Any]] = {}
        self._threads = {
            role: threading.Thread(target=self._ask, args=(role,), name="hang-dock", daemon=True)
            for role in roles
        }
        for thread in self._threads.values():
            thread.start()

    def answers(self) -> dict[str, dict[str, Any]]:
        """By role; `error` of those that did not answer in time."""
        for thread in self._threads.values():
            thread.join(max(0.0, self._deadline - time.monotonic()))
        told = dict(self._told)
        silent = {"error": f"did not answer within {self._seconds:g} s"}
        return {role: told.get(role, silent) for role in self._threads}

    def _ask(self, role: str) -> None:
        identity = ClientIdentity(owner="hangs", session=secrets.token_hex(8))
        channel = Channel(role=role, find=self._find, identity=identity)
        try:
            self._told[role] = channel.ask(Inspect(), timeout_seconds=self._seconds).told
        except DockError as error:
            self._told[role] = {"error": str(error)}
        finally:
            channel.close()
