"""Which ranks are gone: asked when a wait of a reshard failed, whose own error need not say it.

Called by `exchange`. Each rank keeps a socket at which its system answers for as long as the process lives.
Nothing is accepted or said there.
"""

import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch.distributed as dist

BACKLOG = 4096
ANSWER_SECONDS = 2.0
"""Of one connection. Also how long nobody may seem to be gone: the sockets of a process that ends close
one after the other."""
AT_ONCE = 32

Address = tuple[str, int]


class Presence:
    """Of this rank among all of the default group, which make it together."""

    def __init__(self) -> None:
        host = _own_host()
        self._socket = socket.create_server((host, 0), backlog=BACKLOG)
        own: Address = (host, self._socket.getsockname()[1])
        self._addresses = [own] * dist.get_world_size()
        dist.all_gather_object(self._addresses, own)

    def lost(self) -> list[int]:
        """Ranks whose process or host does not answer; after `ANSWER_SECONDS` maybe none."""
        others = [rank for rank in range(len(self._addresses)) if rank != dist.get_rank()]
        deadline = time.monotonic() + ANSWER_SECONDS
        while not (found := self._silent(others)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _silent(self, ranks: Iterable[int]) -> list[int]:
        ranks = list(ranks)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = list(pool.map(_answers, (self._addresses[rank] for rank in ranks)))
        return [rank for rank, answers in zip(ranks, there, strict=True) if not answers]


def _answers(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


def _own_host() -> str:
    """The address that the host's name stands for, as gloo has it; where it has none, this machine alone."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
