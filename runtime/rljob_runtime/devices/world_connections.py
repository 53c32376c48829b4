"""gloo's connections of a world of processes, which one that leaves it breaks.

gloo ends a process' connections once nobody in it holds the group any more. Who leaves after an error may
hold it for long: frames of the error, threads, Megatron, the library itself. A live neighbour, who has no
connection to the one that died, would wait for it all the while. Called wherever groups are made.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rljob_runtime.devices.meetings import SignedStore, Signer
from rljob_runtime.devices.tcp import listens, sockets

Address = tuple[str, int]


@dataclass(slots=True)
class WorldConnections:
    """addresses: where gloo listens in all processes of the world, this one among them. signer: what they
    sign what they say with."""

    addresses: set[Address] = field(default_factory=set)
    signer: Signer = field(default_factory=Signer, init=False)
    _world: tuple[SignedStore, int, int] | None = field(default=None, init=False)
    _times: int = field(default=0, init=False)

    def begin(self, store: SignedStore, rank: int, size: int) -> None:
        """In a world of so many, who tell each other over this store."""
        self.addresses, self._world, self._times = set(), (store, rank, size), 0
        self.signer = store.signer

    @contextmanager
    def of_groups(self) -> Iterator[None]:
        """Around the making of groups, by all ranks of the world: from then on `cut` knows theirs. Does
        nothing before `begin`."""
        if self._world is None:
            yield
            return
        store, rank, size = self._world
        self._times += 1
        before, key = _listening(), f"gloo listens {self._times}"
        yield
        store.set(f"{key}/{rank}", json.dumps(sorted(_listening() - before)))
        said = [json.loads(store.get(f"{key}/{other}")) for other in range(size)]
        self.addresses |= {(host, port) for each in said for host, port in each}

    def cut(self) -> int:
        """Break them: whoever waits for this process hears it at once. Returns how many there were. Nothing
        may be sent over the groups after it."""
        broken = 0
        for each in sockets():
            with suppress(OSError):  # closed meanwhile
                if not listens(each) and {_own(each), _peer(each)} & self.addresses:
                    each.shutdown(socket.SHUT_RDWR)
                    broken += 1
        self.addresses, self._world, self.signer = set(), None, Signer()
        return broken


CONNECTIONS = WorldConnections()
"""This process' in its world: it is in one at a time, as `torch.distributed` has it."""


def _listening() -> set[Address]:
    return {_own(each) for each in sockets() if listens(each)}


def _own(connection: socket.socket) -> Address:
    host, port = connection.getsockname()[:2]
    return host, port


def _peer(connection: socket.socket) -> Address:
    host, port = connection.getpeername()[:2]
    return host, port
