"""Ranks of one machine: each has memory that the others read, and they tell each other what is in it.

Called by `shared`. The memory has no name in any file system, so that nothing of it is left when processes
die, and it is no part of /dev/shm, which pods keep small. What is told goes over sockets: waiting costs no
processor time, and who dies is found at once.
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


class Told(IntEnum):
    """What a rank tells all others of its machine, each for one exchange of hop 0 or 1; GAVE_UP once, when
    it does not go on."""

    FILLED_0 = 0
    FILLED_1 = 1
    TAKEN_0 = 2
    TAKEN_1 = 3
    GAVE_UP = 4


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rank is met. secret: whoever comes says it."""

    name: str
    secret: str


def machines_of(members: Members) -> list[frozenset[int]]:
    """By rank, all ranks that it can meet: of one kernel and network namespace."""
    kernel = Path("/proc/sys/kernel/random/boot_id")
    network = Path("/proc/self/ns/net")
    own = f"rank {members.rank}, which meets nobody"
    if kernel.exists() and network.exists() and hasattr(os, "memfd_create"):
        own = f"{kernel.read_text().strip()} {network.stat().st_ino}"
    names = members.share(own)
    return [frozenset(rank for rank, other in enumerate(names) if other == name) for name in names]


class Peers:
    """This rank among `ranks`, all of one machine; they make it together. memory_bytes: what the others read
    of this rank.

    timeout_seconds: of each wait. Raises WorkerError when one does not come within MEET_SECONDS, is gone or
    takes longer.
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
            links = listening.meet(others, descriptor, MEET_SECONDS)
        except OSError as error:
            raise WorkerError(
                f"reshard rank {self._rank}: ranks {others} of this machine did not all come to share "
                f"memory within {MEET_SECONDS:g} s: {error}"
            ) from error
        finally:
            os.close(descriptor)
        self._sockets = {rank: link for rank, (link, _) in links.items()}
        self.memories = {rank: _as_tensor(_map(theirs)) for rank, (_, theirs) in links.items()}
        self._heard = {rank: [0] * len(Told) for rank in others}

    def tell(self, what: Told) -> None:
        """All others; a rank that is gone is found by those who wait for it."""
        for link in self._sockets.values():
            try:
                link.send(bytes([what]))
            except OSError:
                continue

    def window(self, first: int, size: int) -> Tensor:
        """Bytes of this rank's memory, as a tensor with a storage of its own."""
        if not size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._map, dtype=torch.uint8, offset=first, count=size)

    def await_told(self, what: Told, number: int, ranks: Iterable[int] | None = None) -> None:
        """Until each of the ranks, or of all others, has told this so many times; in one thread at a
        time."""
        deadline = time.monotonic() + self._seconds
        awaited = [
            rank
            for rank in (self._sockets if ranks is None else ranks)
            if self._heard[rank][what] < number
        ]
        if not awaited:
            return
        with self._notes.blocking(f"await {what.name} {number}") as note:
            for place, rank in enumerate(awaited):
                note.awaited = tuple(awaited[place:])
                while self._heard[rank][what] < number:
                    self._hear(rank, what, deadline)

    def forget(self) -> None:
        """Give the memory's pages back, which nobody reads any more; the next write makes new ones."""
        self._map.madvise(MADV_REMOVE)

    def close(self) -> None:
        """To the others, this rank is gone."""
        for link in self._sockets.values():
            link.close()

    def _hear(self, rank: int, what: Told, deadline: float) -> None:
        if self._heard[rank][Told.GAVE_UP]:
            raise WorkerError(
                f"reshard rank {self._rank}: rank {rank} gave up; awaited: {what.name}"
            )
        link, why = self._sockets[rank], "is gone"
        waiting = select.poll()
        waiting.register(link, select.POLLIN)
        said = b""
        if waiting.poll(1000 * max(0.0, deadline - time.monotonic())):
            with suppress(OSError):
                said = link.recv(4096)
        else:
            why = f"was silent for {self._seconds:g} s"
        if not said:
            raise WorkerError(f"reshard rank {self._rank}: rank {rank} {why}; awaited: {what.name}")
        for byte in said:
            self._heard[rank][byte] += 1


Link = tuple[socket.socket, int]
"""A connection, and the descriptor that came over it."""


class Listening:
    """Where this rank is met by the others of its machine; made by all members."""

    def __init__(self, members: Members) -> None:
        self.rank = members.rank
        name, secret = (
            f"\0rljob-reshard-{secrets.token_hex(8)}",
            secrets.token_hex(SECRET_BYTES // 2),
        )
        self._own = Address(name, secret)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self._own.name)
        self._socket.listen(512)
        self._addresses = [Address(*given.split()) for given in members.share(f"{name} {secret}")]

    def meet(self, others: Iterable[int], descriptor: int, seconds: float) -> dict[int, Link]:
        """Connect to lower ranks and await the higher; each has the other's descriptor afterwards.

        Raises OSError when one does not come in time.
        """
        own, found = self.rank, dict[int, Link]()
        higher = {rank for rank in others if rank > own}
        calls = {
            rank: _called(self._addresses[rank], own, descriptor, seconds)
            for rank in others
            if rank < own
        }
        with self._socket:
            while higher:
                link, rank, theirs = self._accept(seconds)
                if rank in higher:
                    socket.send_fds(link, [b"x"], [descriptor])
                    higher.remove(rank)
                    found[rank] = link, theirs
        for rank, link in calls.items():
            found[rank] = link, _given(link, rank)
        return found

    def _accept(self, seconds: float) -> tuple[socket.socket, int | None, int]:
        """A connection, the rank that says its right secret, and its descriptor."""
        self._socket.settimeout(seconds)
        link, _ = self._socket.accept()
        link.settimeout(seconds)
        said, descriptors, _, _ = socket.recv_fds(link, SECRET_BYTES + NUMBER_BYTES, 1)
        known = secrets.compare_digest(said[:SECRET_BYTES], self._own.secret.encode())
        if not known or not descriptors:
            for stranger in descriptors:
                os.close(stranger)
            link.close()
            return link, None, -1
        return link, int.from_bytes(said[SECRET_BYTES:], "big"), descriptors[0]


def _given(link: socket.socket, rank: int) -> int:
    """The descriptor that a lower rank gives. Raises OSError when it is gone."""
    _, descriptors, _, _ = socket.recv_fds(link, 1, 1)
    if not descriptors:
        raise ConnectionResetError(f"rank {rank} is gone")
    return descriptors[0]


def _called(address: Address, own: int, descriptor: int, seconds: float) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(seconds)
    link.connect(address.name)
    socket.send_fds(
        link, [address.secret.encode() + own.to_bytes(NUMBER_BYTES, "big")], [descriptor]
    )
    return link


def _map(descriptor: int) -> mmap.mmap:
    """All of a memory, whose descriptor is closed then. Readers write nothing there."""
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)


def _as_tensor(memory: mmap.mmap) -> Tensor:
    """uint8, over the same bytes."""
    return torch.frombuffer(memory, dtype=torch.uint8)
