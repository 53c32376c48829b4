"""A warehouse's answers to reads: with bytes, or for readers that map its memory with their location.

Bytes whose location was sent do not change until the reader releases them, its connection ends, or the pin's
deadline has passed. The reader has the deadline too, and rejects data that it read after it.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rljob_runtime.dock.warehouse.located import ColumnLocation
from rljob_runtime.dock.warehouse.slabs import SlabMemory, SlabRun, merge_adjacent
from rljob_runtime.dock.wire.encoding import padding
from rljob_runtime.dock.wire.memory import Span
from rljob_runtime.dock.wire.messages import Columns, StoredColumn, pack_numbers
from rljob_runtime.dock.wire.peer import Peer, Reply

INLINE_BYTES = 16 << 10
"""Answers up to this size carry their bytes: a copy costs less than a pin and its release."""

Lookup = Callable[[Sequence[str], Sequence[str]], list[ColumnLocation]]


@dataclass(slots=True)
class _Pin:
    runs: list[SlabRun]
    deadline: float


@dataclass(slots=True, kw_only=True)
class ReadDesk:
    """Answers reads and owns the pins.

    pin_seconds: maximum time that a reader may use an answer. lookup: locates columns of rows. freed: called
    when bytes of gone rows may have become free.
    """

    slabs: SlabMemory
    lookup: Lookup
    freed: Callable[[], None]
    pin_seconds: float
    expired_pins: int = 0
    _pins: dict[Peer, dict[int, _Pin]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _alarm: asyncio.TimerHandle | None = None

    @property
    def num_pins(self) -> int:
        """The number of answers that readers use now."""
        return sum(len(pins) for pins in self._pins.values())

    def answer(self, peer: Peer, uids: Sequence[str], names: Sequence[str]) -> Reply:
        """Return the columns of the rows, as docs/dock.md describes the answer to READ."""
        locations = self.lookup(uids, names)
        spans = [
            merge_adjacent([s for run in location.runs for s in run.spans(location.name)])
            for location in locations
        ]
        size = sum([end - start for span_list in spans for start, end in span_list])
        pinned = peer.attached and size > INLINE_BYTES
        runs = list({run: None for location in locations for run in location.runs})
        columns = [
            StoredColumn(
                name=location.name,
                dtype=location.form.dtype,
                tail=location.form.tail,
                lengths=b"".join([run.lengths(location.name).tobytes() for run in location.runs]),
                of_groups=location.of_groups,
                spans=pack_numbers(np.array(column_spans, dtype=np.int64)) if pinned else b"",
                total=sum([run.total(location.name) for run in location.runs]) % (1 << 64),
            )
            for location, column_spans in zip(locations, spans, strict=True)
        ]
        if pinned:
            return Reply(message=Columns(columns=columns, pin=self._pin(peer, runs)))
        self.slabs.pin(runs)
        return Reply(
            message=Columns(columns=columns),
            buffers=[buffer for span_list in spans for buffer in self._payload(span_list)],
            on_sent=lambda: self._unpin(runs),
        )

    def release(self, peer: Peer, numbers: Iterable[int]) -> None:
        """Remove pins that the reader does not use any more; expired ones are ignored."""
        pins = self._pins.get(peer, {})
        released = [pins.pop(number) for number in dict.fromkeys(numbers) if number in pins]
        self._unpin([run for pin in released for run in pin.runs])

    def peer_lost(self, peer: Peer) -> None:
        """Remove the pins of a reader whose connection is gone."""
        self.release(peer, list(self._pins.get(peer, ())))
        self._pins.pop(peer, None)

    def _payload(self, spans: Sequence[Span]) -> list[Any]:
        size = sum(end - start for start, end in spans)
        return [*(self.slabs.memory.view[start:end] for start, end in spans), padding(size)]

    def _pin(self, peer: Peer, runs: list[SlabRun]) -> int:
        number, deadline = next(self._numbers), time.monotonic() + self.pin_seconds
        self._pins.setdefault(peer, {})[number] = _Pin(runs, deadline)
        self.slabs.pin(runs)
        self._set_alarm()
        return number

    def _unpin(self, runs: Iterable[SlabRun]) -> None:
        if self.slabs.unpin(runs):
            self.freed()

    def _set_alarm(self) -> None:
        """Schedule the first expiry of a pin; each reader's pins are in order."""
        first = (next(iter(pins.values())).deadline for pins in self._pins.values() if pins)
        if self._alarm is None and (deadline := min(first, default=None)) is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm, time_s = None, time.monotonic()
        for peer, pins in self._pins.items():
            expired = [number for number, pin in pins.items() if pin.deadline <= time_s]
            self.expired_pins += len(expired)
            self.release(peer, expired)
        self._set_alarm()
