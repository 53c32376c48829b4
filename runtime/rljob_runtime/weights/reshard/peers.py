"""Ranks of one machine: each has memory that the others read, and signals them what it contains.

Called by `shared`. The memory has no name in any file system, so that nothing of it remains when processes
die. It is not in /dev/shm, which pods keep small. Signals are sent over sockets: waiting costs no processor
time, and a dead rank is detected immediately.
"""

import mmap
import os
import secrets
import select
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch
from torch import Tensor

from rljob_runtime.devices.collective_notes import NOTES, GroupNotes
from rljob_runtime.devices.members import Members
from rljob_runtime.devices.sync_group import MEET_SECONDS
from rljob_runtime.errors import WorkerError

MADV_REMOVE = 9
SECRET_BYTES, NUMBER_BYTES = 32, 4


class PeerSignal(IntEnum):
    """The signals of a rank to all others of its machine, each for one exchange of hop 0 or 1; GAVE_UP once,
    when it does not continue."""

    FILLED_0 = 0
    FILLED_1 = 1
    TAKEN_0 = 2
    TAKEN_1 = 3
    GAVE_UP = 4


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """The socket of a rank. secret: a connecting rank must send it."""

    name: str
    secret: str


def machines_of(members: Members) -> list[frozenset[int]]:
    """Return by rank all ranks that it can connect to: those of one kernel and network namespace."""
    kernel = Path("/proc/sys/kernel/random/boot_id")
    network = Path("/proc/self/ns/net")
    machine = f"rank {members.rank}, which meets nobody"
    if kernel.exists() and network.exists() and hasattr(os, "memfd_create"):
        machine = f"{kernel.read_text().strip()} {network.stat().st_ino}"
    names = members.share(machine)
    return [frozenset(rank for rank, other in enumerate(names) if other == name) for name in names]


class Peers:
    """This rank among `ranks`, all of one machine; they create it together. memory_bytes: the size of this
    rank's memory, which the others read.

    timeout_seconds: of each wait. Raises WorkerError when a rank does not connect within MEET_SECONDS, is
    lost or takes longer.
    """

    def __init__(
        self,
        listening: "Listening",
        ranks: Iterable[int],
        memory_bytes: int,
        timeout_seconds: float,
    ) -> None:
        self._rank, self._seconds = listening.rank, timeout_seconds
        descriptor = os.memfd_create("rljob-reshard", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, max(1, memory_bytes))
        self._map = mmap.mmap(descriptor, 0)
        self.memory = _as_tensor(self._map)
        ranks = list(ranks)
        others = [rank for rank in ranks if rank != self._rank]
        among = ",".join(map(str, ranks))
        notes = GroupNotes(f"shared memory, ranks {among}", rank=self._rank, size=len(ranks))
        self._notes = NOTES.add(self, notes)
        try:
            connections = listening.connect(others, descriptor, MEET_SECONDS)
        except OSError as error:
            raise WorkerError(
                f"reshard rank {self._rank}: ranks {others} of this machine did not all come to share "
                f"memory within {MEET_SECONDS:g} s: {error}"
            ) from error
        finally:
            os.close(descriptor)
        self._sockets = {rank: connection for rank, (connection, _) in connections.items()}
        self.memories = {
            rank: _as_tensor(_map(peer_descriptor))
            for rank, (_, peer_descriptor) in connections.items()
        }
        self._received = {rank: [0] * len(PeerSignal) for rank in others}

    def signal(self, kind: PeerSignal) -> None:
        """Send a signal to all others; a lost rank is detected by those that wait for it."""
        for link in self._sockets.values():
            try:
                link.send(bytes([kind]))
            except OSError:
                continue

    def window(self, first: int, size: int) -> Tensor:
        """Return bytes of this rank's memory, as a tensor with a separate storage."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._map, dtype=torch.uint8, offset=first, count=size)

    def await_signals(
        self, kind: PeerSignal, number: int, ranks: Iterable[int] | None = None
    ) -> None:
        """Wait until each of the ranks, or all others, have sent this signal so many times; one thread at a
        time."""
        deadline = time.monotonic() + self._seconds
        awaited = [
            rank
            for rank in (self._sockets if ranks is None else ranks)
            if self._received[rank][kind] < number
        ]
        if not awaited:
            return
        with self._notes.blocking(f"await {kind.name} {number}") as note:
            for index, rank in enumerate(awaited):
                note.awaited = tuple(awaited[index:])
                while self._received[rank][kind] < number:
                    self._receive(rank, kind, deadline)

    def forget(self) -> None:
        """Free the memory's pages, which no rank reads any more; the next write allocates new ones."""
        self._map.madvise(MADV_REMOVE)

    def close(self) -> None:
        """Close the connections; the others detect this rank as lost."""
        for link in self._sockets.values():
            link.close()

    def _receive(self, rank: int, kind: PeerSignal, deadline: float) -> None:
        if self._received[rank][PeerSignal.GAVE_UP]:
            raise WorkerError(
                f"reshard rank {self._rank}: rank {rank} gave up; awaited: {kind.name}"
            )
        link, reason = self._sockets[rank], "is gone"
        poller = select.poll()
        poller.register(link, select.POLLIN)
        signals = b""
        if poller.poll(1000 * max(0.0, deadline - time.monotonic())):
            with suppress(OSError):
                signals = link.recv(4096)
        else:
            reason = f"was silent for {self._seconds:g} s"
        if not signals:
            raise WorkerError(
                f"reshard rank {self._rank}: rank {rank} {reason}; awaited: {kind.name}"
            )
        for byte in signals:
            self._received[rank][byte] += 1


Link = tuple[socket.socket, int]
"""A connection, and the file descriptor that was received over it."""


class Listening:
    """The socket to which the other ranks of the machine connect; created by all members."""

    def __init__(self, members: Members) -> None:
        self.rank = members.rank
        name, secret = (
            f"\0rljob-reshard-{secrets.token_hex(8)}",
            secrets.token_hex(SECRET_BYTES // 2),
        )
        self._address = PeerAddress(name, secret)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._address.name)
        self._socket.listen(512)
        self._addresses = [
            PeerAddress(*address.split()) for address in members.share(f"{name} {secret}")
        ]

    def connect(self, others: Iterable[int], descriptor: int, seconds: float) -> dict[int, Link]:
        """Connect to lower ranks and accept the higher ones; each then has the other's descriptor.

        Raises OSError when a rank does not connect in time.
        """
        rank_here, links = self.rank, dict[int, Link]()
        higher = {rank for rank in others if rank > rank_here}
        lower_links = {
            rank: _connected(self._addresses[rank], rank_here, descriptor, seconds)
            for rank in others
            if rank < rank_here
        }
        with self._socket:
            while higher:
                link, rank, peer_descriptor = self._accept(seconds)
                if rank in higher:
                    socket.send_fds(link, [b"x"], [descriptor])
                    higher.remove(rank)
                    links[rank] = link, peer_descriptor
        for rank, link in lower_links.items():
            links[rank] = link, _received_descriptor(link, rank)
        return links

    def _accept(self, seconds: float) -> tuple[socket.socket, int | None, int]:
        """Return a connection, the rank that sent the right secret, and its descriptor."""
        self._socket.settimeout(seconds)
        link, _ = self._socket.accept()
        link.settimeout(seconds)
        message, descriptors, _, _ = socket.recv_fds(link, SECRET_BYTES + NUMBER_BYTES, 1)
        is_authentic = secrets.compare_digest(message[:SECRET_BYTES], self._address.secret.encode())
        if not is_authentic or not descriptors:
            for extra in descriptors:
                os.close(extra)
            link.close()
            return link, None, -1
        return link, int.from_bytes(message[SECRET_BYTES:], "big"), descriptors[0]


def _received_descriptor(link: socket.socket, rank: int) -> int:
    """Return the descriptor that a lower rank sends. Raises OSError when it is lost."""
    _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    if not descriptors:
        raise ConnectionResetError(f"rank {rank} is gone")
    return descriptors[0]


def _connected(address: PeerAddress, rank: int, descriptor: int, seconds: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(seconds)
    link.connect(address.name)
    socket.send_fds(
        link, [address.secret.encode() + rank.to_bytes(NUMBER_BYTES, "big")], [descriptor]
    )
    return link


def _map(descriptor: int) -> mmap.mmap:
    """Map all of a memory and close its descriptor. Readers must not write to it."""
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _as_tensor(memory: mmap.mmap) -> Tensor:
    """Return a uint8 tensor over the same bytes."""
    return torch.frombuffer(memory, dtype=torch.uint8)
