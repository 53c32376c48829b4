"""TCP between pods that come and go: an address whose pod is gone answers nothing, not even a refusal.

So a try to connect is short, and the next one asks anew where the server is; and a connection whose
other end vanished without a word is found by the system.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TypeVar

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_SECONDS = 3.0
"""Of one try: a living server's system answers at once, unless its queue is full."""
IDLE_SECONDS, PROBE_SECONDS, PROBES = 10, 5, 3
"""A connection that is silent so long is probed; it is lost after so many probes without an answer."""


def connect(place: tuple[str, int], seconds: float) -> socket.socket:
    """A connected socket. Raises OSError, TimeoutError after the least of both limits."""
    connected = socket.create_connection(place, timeout=min(seconds, CONNECT_SECONDS))
    notice_silence(connected)
    return connected


async def open_connection(
    new_protocol: Callable[[], P], place: tuple[str, int]
) -> tuple[asyncio.Transport, P]:
    """The same for asyncio."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        return await loop.create_connection(new_protocol, *place)


def notice_silence(connected: socket.socket) -> None:
    """Have the system end it when the other end's machine says nothing any more."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
        unconfirmed = (IDLE_SECONDS + PROBE_SECONDS * PROBES) * 1000
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unconfirmed)
