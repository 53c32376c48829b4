"""TCP between pods that come and go: an address whose pod is gone does not even refuse a connection.

So an attempt to connect is short, and the next one looks the server's address up again. The system detects a
connection whose other end vanished silently.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_SECONDS = 3.0
"""Timeout of one attempt: a living server's system answers immediately, unless its queue is full."""
IDLE_SECONDS, PROBE_SECONDS, PROBES = 10, 5, 3
"""A connection that is silent for IDLE_SECONDS is probed; it is lost after PROBES unanswered probes."""


def connect(address: tuple[str, int], seconds: float) -> socket.socket:
    """Return a connected socket. Raises OSError, TimeoutError after the smaller of both limits."""
    connected = socket.create_connection(address, timeout=min(seconds, CONNECT_SECONDS))
    notice_silence(connected)
    return connected


async def open_connection(
    new_protocol: Callable[[], P], address: tuple[str, int]
) -> tuple[asyncio.Transport, P]:
    """Open a connection for asyncio, with the timeout of `connect`."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        return await loop.create_connection(new_protocol, *address)


def notice_silence(connected: socket.socket) -> None:
    """Make the system end the connection when the other machine is silent."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError, OSError):  # not on Linux
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        unconfirmed = (IDLE_SECONDS + PROBE_SECONDS * PROBES) * 1000
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unconfirmed)
