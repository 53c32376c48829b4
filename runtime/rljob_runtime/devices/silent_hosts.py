"""Connections to a host that is gone without a word: a lost machine, or a pod whose network goes before its
processes have said goodbye. Who waits there hears it; nobody else would tell gloo.

Of a connection on which nothing comes the kernel asks. For as long as something is on its way there, it does
not, and sends that again for a quarter of an hour, so that this process looks. (TCP_USER_TIMEOUT would end
connections to those who live and do not read, too.)
"""

import os
import socket
import struct
import threading
import time
from contextlib import suppress

from rljob_runtime.devices.tcp import listens, sockets

PROBE_SECONDS, PROBES = 2, 3
"""Of a connection on which nothing comes: after so long, and so often, before it counts as broken."""
UNANSWERED, UNANSWERED_SECONDS = 5, 6.0
"""Of one on which something is on its way: so often it was sent again, which takes 6.2 s or longer, and
nothing came back for so long."""
_RETRANSMITS_AT, _LAST_ANSWER_AT, _INFO_BYTES = 2, 56, 60
"""In the kernel's `struct tcp_info`: a byte, and milliseconds as 4 bytes."""
_watched: set[int] = set()
"""Processes with the thread that looks, which forks do not have."""


def probe(connection: socket.socket) -> None:
    """Have the kernel ask whether the other host is there, for as long as nothing is on its way to it. Raises
    OSError where the connection is none of TCP."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def probe_connections() -> int:
    """All of this process over TCP, whoever made them: gloo has no setting for it. Returns how many there
    are; 0 where the system does not list them. From then on a thread breaks those that are `unanswered`."""
    probed = 0
    for each in sockets():
        with suppress(OSError):  # closed meanwhile
            if not listens(each):
                probe(each)
                probed += 1
    if probed and hasattr(socket, "TCP_INFO") and os.getpid() not in _watched:
        _watched.add(os.getpid())
        threading.Thread(target=_break_unanswered, name="silent hosts", daemon=True).start()
    return probed


def unanswered(connection: socket.socket) -> bool:
    """Whether what is sent over it was sent again and again, and nothing came back; never where the other
    one lives and does not read. Raises OSError where the connection is none of TCP."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return False
    (silent,) = struct.unpack_from("=I", info, _LAST_ANSWER_AT)
    return info[_RETRANSMITS_AT] >= UNANSWERED and silent >= UNANSWERED_SECONDS * 1000


def _break_unanswered() -> None:
    """For as long as this process lives."""
    while True:
        time.sleep(PROBE_SECONDS)
        for each in sockets():
            with suppress(OSError):  # closed meanwhile
                if not listens(each) and unanswered(each):
                    each.shutdown(socket.SHUT_RDWR)
