"""Statistics of a dock: each server's report, and their sums."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from rljob_runtime.dock.columns import Column
from rljob_runtime.dock.wire.messages import ControllerStats, WarehouseStats

ROOM = "room"
"""Placeholder for the state that is waited for, where a warehouse was full."""


@dataclass(slots=True, kw_only=True)
class DockTraffic:
    """The traffic of one client since it was last read.

    rows: written or acknowledged first. rows_read, bytes_read: values by column. bytes_written: all values.
    wait_seconds: in claims. transfer_seconds: in reads, writes and puts, including waits for room. waits:
    seconds by the state that was waited for, and by ROOM. shared_paths, tcp_paths: number of warehouses read
    in shared memory, and over TCP.
    """

    rows: int = 0
    rows_read: Counter[str] = field(default_factory=Counter)
    bytes_read: Counter[str] = field(default_factory=Counter)
    bytes_written: int = 0
    wait_seconds: float = 0.0
    transfer_seconds: float = 0.0
    waits: dict[str, float] = field(default_factory=dict)
    shared_paths: int = 0
    tcp_paths: int = 0

    def add(self, other: "DockTraffic") -> None:
        """Add another client's traffic."""
        self.rows += other.rows
        self.rows_read.update(other.rows_read)
        self.bytes_read.update(other.bytes_read)
        self.bytes_written += other.bytes_written
        self.wait_seconds += other.wait_seconds
        self.transfer_seconds += other.transfer_seconds
        self.count_waits(other.waits)
        self.shared_paths += other.shared_paths
        self.tcp_paths += other.tcp_paths

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count the time of the block, which reads or writes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.transfer_seconds += time.monotonic() - began

    def count_reads(self, columns: Mapping[str, Column]) -> None:
        """Count columns that were read."""
        for name, column in columns.items():
            self.rows_read[name] += len(column)
            self.bytes_read[name] += column.num_bytes

    def count_waits(self, seconds: Mapping[str, float]) -> None:
        """Count seconds of waiting, by the state that was waited for."""
        for state, more in seconds.items():
            self.waits[state] = self.waits.get(state, 0.0) + more


class RoomWaits:
    """Seconds that a call waited for room. Warehouses are called in parallel, each by one thread."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def add(self, warehouse: int, seconds: float | None) -> None:
        """Add the wait of a warehouse's answer; None: there was room."""
        if seconds is not None:
            self._seconds[warehouse] = self._seconds.get(warehouse, 0.0) + seconds

    def waits(self) -> dict[str, float]:
        """Return the longest wait, as traffic counts it; empty where there was room."""
        return {ROOM: max(self._seconds.values())} if self._seconds else {}


class RowCounts(NamedTuple):
    """Rows at one state, as its controller counts them.

    lacking: a column is missing. ready: for a claim. leased: to a worker. acknowledged: since the controller
    started.
    """

    lacking: int
    ready: int
    leased: int
    acknowledged: int

    @classmethod
    def from_answer(cls, answer: ControllerStats) -> "RowCounts":
        """Build the counts from a controller's statistics."""
        lacking = answer.rows - answer.ready - answer.leased
        return cls(lacking, answer.ready, answer.leased, answer.acknowledged)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockStats:
    """The statistics of a dock.

    servers: each server's report by role, as docs/dock.md lists it. rows, bytes: in all warehouses. batches:
    live rows of each batch. unacknowledged: live rows that each state has not acknowledged. refused:
    connections and frames refused by all servers, by reason. waiting: parked requests. leased: rows under a
    lease in all controllers.
    """

    servers: Mapping[str, Mapping[str, Any]]
    rows: int
    bytes: int
    batches: Mapping[str, int]
    unacknowledged: Mapping[str, int]
    refused: Mapping[str, int]
    waiting: int
    leased: int

    @classmethod
    def from_answers(
        cls, warehouses: Sequence[WarehouseStats], controllers: Sequence[ControllerStats]
    ) -> "DockStats":
        """Sum the servers' answers."""
        answers = [*warehouses, *controllers]
        return cls(
            servers={answer.role: msgspec.to_builtins(answer) for answer in answers},
            rows=sum(w.rows for w in warehouses),
            bytes=sum(w.bytes for w in warehouses),
            batches=_sum_counts(w.batches for w in warehouses),
            unacknowledged=_sum_counts(w.unacknowledged for w in warehouses),
            refused=_sum_counts(answer.refused for answer in answers),
            waiting=sum(answer.waiting for answer in answers),
            leased=sum(c.leased for c in controllers),
        )


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
