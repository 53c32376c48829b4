"""List this process' TCP sockets, including those of libraries, and choose its listening address."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACES = ("lo", "lo0")
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
FOLDER = "/proc/self/fd"
FAMILIES = (socket.AF_INET, socket.AF_INET6)


def sockets() -> Iterator[socket.socket]:
    """Yield all TCP sockets, connected or listening, each valid until the next; none where the system does
    not list them. Each is a duplicate: closing it does not close the connection."""
    with suppress(FileNotFoundError):
        for name in os.listdir(FOLDER):
            with suppress(OSError):  # closed meanwhile, or no socket
                copy = os.dup(int(name))
                try:
                    connection = socket.socket(fileno=copy)
                except OSError:
                    os.close(copy)
                    raise
                with connection:
                    if connection.family in FAMILIES and connection.type == socket.SOCK_STREAM:
                        yield connection


def is_listening(connection: socket.socket) -> bool:
    """Return whether the socket listens for connections."""
    return bool(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def restrict_to_loopback() -> None:
    """Listen only at the loopback address, gloo included, unless the user has set an interface."""
    names = [name for _, name in socket.if_nameindex() if name in LOOPBACK_INTERFACES]
    if names:
        os.environ.setdefault(INTERFACE_VARIABLE, names[0])


def listening_host() -> str:
    """Return the address at which other ranks reach this process, chosen as gloo does: the loopback address
    or that of the host's name; the loopback address where the name does not resolve."""
    if os.environ.get(INTERFACE_VARIABLE) in LOOPBACK_INTERFACES:
        return LOOPBACK
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
