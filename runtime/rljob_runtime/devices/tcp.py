"""Connections of this process over TCP, whoever made them, as the system lists them; where it listens."""

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


def stay_on_this_machine() -> None:
    """Listen at the loopback address from now on, gloo too, unless the user has named an interface."""
    names = [name for _, name in socket.if_nameindex() if name in LOOPBACK_INTERFACES]
    if names:
        os.environ.setdefault(INTERFACE_VARIABLE, names[0])


def listening_host() -> str:
    """Where other ranks reach this process, as gloo has it: the loopback address, or what the host's name
    stands for; where that is nothing, this machine alone."""
    if os.environ.get(INTERFACE_VARIABLE) in LOOPBACK_INTERFACES:
        return LOOPBACK
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
