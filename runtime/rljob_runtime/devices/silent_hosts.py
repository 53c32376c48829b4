"""Break connections to hosts that vanished: a lost machine, or a pod whose network ends before its processes.
Waits on such connections then fail; gloo has no other detection.

On an idle connection the kernel sends keepalive probes. While data is unacknowledged it sends none, but
retransmits for a quarter of an hour, so this process checks such connections. (TCP_USER_TIMEOUT would also
end connections to live processes that do not read.)
"""

import os
import socket
import struct
import threading
import time
from contextlib import suppress

from rljob_runtime.devices.tcp import is_listening, sockets

PROBE_SECONDS, PROBES = 2, 3
"""Idle seconds before a keepalive probe, and the number of unanswered probes that break a connection."""
UNANSWERED, UNANSWERED_SECONDS = 5, 6.0
"""Limits for unacknowledged data: the number of retransmissions, which takes 6.2 s or longer, and the seconds
without an answer."""
_RETRANSMITS_AT, _LAST_ANSWER_AT, _INFO_BYTES = 2, 56, 60
"""Offsets in the kernel's `struct tcp_info`: a byte, and milliseconds as 4 bytes; and the size up to
there."""
_watched: set[int] = set()
"""Ids of processes that have the checking thread; forks do not inherit it."""


def enable_keepalive(connection: socket.socket) -> None:
    """Make the kernel probe the other host while the connection is idle. Raises OSError for a connection that
    is not TCP."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def probe_connections() -> int:
    """Enable keepalive on all TCP connections of this process, as gloo has no setting for it. Returns their
    number; 0 where the system does not list them. From then on a thread breaks those where
    `is_unanswered`."""
    probed = 0
    for connection in sockets():
        with suppress(OSError):  # closed meanwhile
            if not is_listening(connection):
                enable_keepalive(connection)
                probed += 1
    if probed and hasattr(socket, "TCP_INFO") and os.getpid() not in _watched:
        _watched.add(os.getpid())
        threading.Thread(target=_break_unanswered, name="silent hosts", daemon=True).start()
    return probed


def is_unanswered(connection: socket.socket) -> bool:
    """Return whether data was retransmitted often without an answer; False for a live peer that does not
    read. Raises OSError for a connection that is not TCP."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(info) < _INFO_BYTES:
        return False
    (silent_ms,) = struct.unpack_from("=I", info, _LAST_ANSWER_AT)
    return info[_RETRANSMITS_AT] >= UNANSWERED and silent_ms >= UNANSWERED_SECONDS * 1000


def _break_unanswered() -> None:
    """Break unanswered connections for as long as this process lives."""
    while True:
        time.sleep(PROBE_SECONDS)
        for connection in sockets():
            with suppress(OSError):  # closed meanwhile
                if not is_listening(connection) and is_unanswered(connection):
                    connection.shutdown(socket.SHUT_RDWR)
