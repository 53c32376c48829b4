"""Ports that stay a dock's own: for servers that start in a moment, and again after a death."""

import random
import socket
from collections.abc import Iterator
from typing import Self

from rljob_runtime.errors import DockError

PORTS = range(20_000, 32_000)
"""Systems give none of these to outgoing connections."""


class HeldPorts:
    """Some free ports of this machine, bound but not listened on, until `close` or the process ends.

    Only a server that reuses addresses, as the dock's do, can listen on one; nobody else can take it,
    even while no server is there. Another machine's servers may use the same numbers, unheld.
    """

    def __init__(self, count: int) -> None:
        """Raises DockError when fewer than `count` are free."""
        self._sockets: list[socket.socket] = []
        for port in random.sample(PORTS, len(PORTS)):
            if len(self._sockets) == count:
                break
            self._try(port)
        if len(self._sockets) < count:
            self.close()
            raise DockError(f"fewer than {count} of the ports {PORTS} are free on this machine")

    def __iter__(self) -> Iterator[int]:
        return iter([int(held.getsockname()[1]) for held in self._sockets])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let them go."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()

    def _try(self, port: int) -> None:
        held = socket.socket()
        try:
            held.bind(("", port))
        except OSError:
            held.close()
            return
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(held)
