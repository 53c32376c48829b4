"""Ports for servers that a test starts in another process, where they cannot pick one themselves.

Nothing else takes one between the look and the server's start: each worker of the suite has ports of its
own, in order, in a range that systems give to no outgoing connection and docks do not use (`dock.ports`)."""

import os
import socket
from itertools import cycle

PORTS = range(12_000, 20_000)
A_WORKER = 500
"""Ports of one worker of pytest-xdist; the suite takes fewer than a hundred."""

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_candidates = cycle(PORTS[WORKER * A_WORKER % len(PORTS) :][:A_WORKER])


def free_port() -> int:
    """Return a port that nothing listens on, and that no other test is given."""
    for _ in range(A_WORKER):
        port = next(_candidates)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"none of the {A_WORKER} ports of this worker is free")
