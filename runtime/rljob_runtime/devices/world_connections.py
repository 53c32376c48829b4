"""gloo's connections of a world of processes, which a process breaks when it leaves after an error.

gloo closes a process' connections once the group has no references left. After an error, references may
remain for long: in the error's frames, threads, Megatron, and the library itself. A live neighbour without a
connection to the dead process would wait all that time. Called wherever groups are created.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rljob_runtime.devices.meetings import SignedStore, Signer
from rljob_runtime.devices.tcp import is_listening, sockets

SocketAddress = tuple[str, int]


@dataclass(slots=True)
class WorldConnections:
    """Connections of this process' world. addresses: where gloo listens in all of its processes, including
    this one. signer: signs texts that the processes exchange."""

    addresses: set[SocketAddress] = field(default_factory=set)
    signer: Signer = field(default_factory=Signer, init=False)
    _world: tuple[SignedStore, int, int] | None = field(default=None, init=False)
    _num_groups: int = field(default=0, init=False)

    def begin(self, store: SignedStore, rank: int, size: int) -> None:
        """Join a world of `size` processes that exchange texts over this store."""
        self.addresses, self._world, self._num_groups = set(), (store, rank, size), 0
        self.signer = store.signer

    @contextmanager
    def tracking_groups(self) -> Iterator[None]:
        """Record the addresses of groups that the body creates, on all ranks of the world, for `cut`. Does
        nothing before `begin`."""
        if self._world is None:
            yield
            return
        store, rank, size = self._world
        self._num_groups += 1
        earlier, key = _listening_addresses(), f"gloo listens {self._num_groups}"
        yield
        store.set(f"{key}/{rank}", json.dumps(sorted(_listening_addresses() - earlier)))
        listed = [json.loads(store.get(f"{key}/{other}")) for other in range(size)]
        self.addresses |= {(host, port) for addresses in listed for host, port in addresses}

    def cut(self) -> int:
        """Break the connections, so that waits for this process fail immediately. Returns their number. The
        groups must not be used afterwards."""
        num_broken = 0
        for connection in sockets():
            with suppress(OSError):  # closed meanwhile
                if (
                    not is_listening(connection)
                    and {_local_address(connection), _peer_address(connection)} & self.addresses
                ):
                    connection.shutdown(socket.SHUT_RDWR)
                    num_broken += 1
        self.addresses, self._world, self.signer = set(), None, Signer()
        return num_broken


CONNECTIONS = WorldConnections()
"""The connections of this process, which is in one world at a time, as in `torch.distributed`."""


def _listening_addresses() -> set[SocketAddress]:
    return {_local_address(connection) for connection in sockets() if is_listening(connection)}


def _local_address(connection: socket.socket) -> SocketAddress:
    host, port = connection.getsockname()[:2]
    return host, port


def _peer_address(connection: socket.socket) -> SocketAddress:
    host, port = connection.getpeername()[:2]
    return host, port
