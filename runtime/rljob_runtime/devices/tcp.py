"""Connections of this process over TCP, whoever made them, as the system lists them."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

FOLDER = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def sockets() -> Iterator[socket.socket]:
    """All of TCP, connected or listening, each until the next is asked for; none where the system does not
    list them. Closing one of these leaves the connection as it is."""
    with suppress(FileNotFoundError):
        for name in os.listdir(FOLDER):
            with suppress(OSError):  # closed meanwhile, or no socket
                copy = os.dup(int(name))
                try:
                    found = socket.socket(fileno=copy)
                except OSError:
                    os.close(copy)
                    raise
                with found:
                    if found.family in FAMILIES and found.type == socket.SOCK_STREAM:
                        yield found


def listens(found: socket.socket) -> bool:
    """Whether others connect to it."""
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
