"""Ports reserved for a dock: for servers that start soon, and restart after a crash."""

import random
import socket
from collections.abc import Iterator
from typing import Self

from rljob_runtime.errors import DockError

PORTS = range(20_000, 32_000)
"""Systems use none of these ports for outgoing connections."""


class ReservedPorts:
    """Some free ports of this machine, bound but not listened on, until `close` or the process ends.

    Only a server that reuses addresses, like the dock's, can listen on one; no other process can take it,
    even while no server runs. Servers of another machine may use the same numbers without reservation.
    """

    def __init__(self, count: int) -> None:
        """Reserve the ports. Raises DockError when fewer than `count` are free."""
        self._sockets: list[socket.socket] = []
        for port in random.sample(PORTS, len(PORTS)):
            if len(self._sockets) == count:
                break
            self._try(port)
        if len(self._sockets) < count:
            self.close()
            raise DockError(f"fewer than {count} of the ports {PORTS} are free on this machine")

    def __iter__(self) -> Iterator[int]:
        return iter([int(reserved.getsockname()[1]) for reserved in self._sockets])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the reserved ports."""
        for reserved in self._sockets:
            reserved.close()
        self._sockets.clear()

    def _try(self, port: int) -> None:
        candidate = socket.socket()
        try:
            candidate.bind(("", port))
        except OSError:
            candidate.close()
            return
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(candidate)
