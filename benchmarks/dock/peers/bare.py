"""The same copies and sums with nothing between them: one producer writes chunks into shared memory, readers
look at them there. The limit of any system that moves rows through memory; it keeps no rows apart, and
leases, frees and recovers none. One batch at a time.
"""

import mmap
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.dock.sample_flow.payload import COLUMNS, IDS, Array, Column

POLL_SECONDS = 50e-6
CHUNKS = 4096
FACTS = 1 + 2 * len(COLUMNS)
"""Of a chunk, as int64: its rows, and where each column begins and ends."""
HEAD_BYTES = 8 * (2 + CHUNKS * FACTS)
"""Number of the batch, chunks that are there, their facts."""


class BareHost:
    """Memory of so many bytes, without a name; `address` is a path to it while this process lives."""

    def __init__(self, capacity: int) -> None:
        self._memory = os.memfd_create("bare")
        os.ftruncate(self._memory, HEAD_BYTES + capacity)
        self.address = f"/proc/{os.getpid()}/fd/{self._memory}"

    def close(self) -> None:
        """See Host."""
        os.close(self._memory)


class BareSide:
    """See Side. A claim is the facts of a chunk."""

    def __init__(self, address: str) -> None:
        descriptor = os.open(address, os.O_RDWR)
        self._bytes = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))
        os.close(descriptor)
        head = np.frombuffer(self._bytes[:HEAD_BYTES], dtype=np.int64)
        self._state, self._facts = head[:2], head[2:].reshape(CHUNKS, FACTS)
        self._place = HEAD_BYTES
        self._taken: dict[tuple[str, str], int] = {}

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> dict[str, Column]:
        """Views of the caller's arrays."""
        return columns

    def put(
        self, batch: str, prepared: dict[str, Column], *, total: int, states: list[str]
    ) -> None:
        """See Side."""
        if self._state[0] != _number(batch):
            self._state[1], self._place = 0, HEAD_BYTES
            self._state[0] = _number(batch)
        facts = [len(prepared[COLUMNS[0]].lengths)]
        for name in COLUMNS:
            values = prepared[name].values
            end = self._place + values.nbytes
            target = np.frombuffer(self._bytes[self._place : end], dtype=values.dtype)
            np.copyto(target, values)
            facts += [self._place, end]
            self._place = -(-end // 64) * 64
        self._facts[self._state[1]] = facts
        self._state[1] += 1

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[list[int], int] | None:
        """See Side; a whole chunk."""
        place = self._taken.get((batch, state), 0)
        if self._state[0] == _number(batch) and place < self._state[1]:
            self._taken[batch, state] = place + 1
            facts: list[int] = self._facts[place].tolist()
            return facts, facts[0]
        time.sleep(POLL_SECONDS)
        return None

    @contextmanager
    def get(self, claim: list[int], columns: list[str], way: str) -> Iterator[Iterable[Array]]:
        """See Side."""
        places = {name: claim[1 + 2 * i : 3 + 2 * i] for i, name in enumerate(COLUMNS)}
        found = [
            np.frombuffer(
                self._bytes[slice(*places[name])], dtype=np.int64 if name in IDS else np.float32
            )
            for name in columns
        ]
        yield found if way == "view" else [array.copy() for array in found]

    def finish(self, state: str, claim: list[int]) -> None:
        """A claim has consumed its rows."""

    def drop(self, batch: str) -> None:
        """The next batch takes its place."""


def _number(batch: str) -> int:
    return int(batch.rpartition("-")[2])


def open_host(capacity: int) -> BareHost:
    """See sample_flow.side."""
    return BareHost(capacity)


def open_side(address: str) -> BareSide:
    """See sample_flow.side."""
    return BareSide(address)
