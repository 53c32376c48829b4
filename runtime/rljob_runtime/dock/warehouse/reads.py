"""How a warehouse answers reads: with bytes, or to readers that map its memory with where they lie.

What a reader was told stays as it is until it releases it, its connection ends, or the pin's deadline
has passed; the reader knows the deadline too, and trusts nothing that it looked at later.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rljob_runtime.dock.warehouse.located import Located
from rljob_runtime.dock.warehouse.slabs import Run, SlabMemory, joined
from rljob_runtime.dock.wire.encoding import padding
from rljob_runtime.dock.wire.memory import Span
from rljob_runtime.dock.wire.messages import Columns, FoundColumn, packed
from rljob_runtime.dock.wire.peer import Peer, Reply

INLINE_BYTES = 16 << 10
"""Answers up to this size carry their bytes: a copy costs less than a pin and its release."""

Lookup = Callable[[Sequence[str], Sequence[str]], list[Located]]


@dataclass(slots=True)
class _Pin:
    runs: list[Run]
    deadline: float


@dataclass(slots=True, kw_only=True)
class ReadDesk:
    """Answers reads and keeps the pins. pin_seconds: how long a reader may look at most.

    lookup: finds columns of rows. freed: called when bytes of gone rows may have become free.
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
        """Answers that readers look at now."""
        return sum(len(pins) for pins in self._pins.values())

    def answer(self, peer: Peer, uids: Sequence[str], names: Sequence[str]) -> Reply:
        """The columns of the rows, as docs/dock.md describes the answer to READ."""
        found = self.lookup(uids, names)
        spans = [joined([s for run in own.runs for s in run.spans(own.name)]) for own in found]
        size = sum([end - start for own in spans for start, end in own])
        pinned = peer.attached and size > INLINE_BYTES
        everything = list({run: None for own in found for run in own.runs})
        columns = [
            FoundColumn(
                name=own.name,
                dtype=own.form.dtype,
                tail=own.form.tail,
                lengths=b"".join([run.lengths(own.name).tobytes() for run in own.runs]),
                of_groups=own.of_groups,
                spans=packed(np.array(where, dtype=np.int64)) if pinned else b"",
                total=sum([run.total(own.name) for run in own.runs]) % (1 << 64),
            )
            for own, where in zip(found, spans, strict=True)
        ]
        if pinned:
            return Reply(message=Columns(columns=columns, pin=self._pin(peer, everything)))
        self.slabs.pin(everything)
        return Reply(
            message=Columns(columns=columns),
            buffers=[part for own in spans for part in self._payload(own)],
            on_sent=lambda: self._unpin(everything),
        )

    def release(self, peer: Peer, numbers: Iterable[int]) -> None:
        """The reader looks at them no more; those that expired are not missed."""
        pins = self._pins.get(peer, {})
        known = [pins.pop(number) for number in dict.fromkeys(numbers) if number in pins]
        self._unpin([run for pin in known for run in pin.runs])

    def lost(self, peer: Peer) -> None:
        """The reader's connection is gone."""
        self.release(peer, list(self._pins.get(peer, ())))
        self._pins.pop(peer, None)

    def _payload(self, spans: Sequence[Span]) -> list[Any]:
        size = sum(end - start for start, end in spans)
        return [*(self.slabs.memory.view[start:end] for start, end in spans), padding(size)]

    def _pin(self, peer: Peer, runs: list[Run]) -> int:
        number, deadline = next(self._numbers), time.monotonic() + self.pin_seconds
        self._pins.setdefault(peer, {})[number] = _Pin(runs, deadline)
        self.slabs.pin(runs)
        self._set_alarm()
        return number

    def _unpin(self, runs: Iterable[Run]) -> None:
        if self.slabs.unpin(runs):
            self.freed()

    def _set_alarm(self) -> None:
        """Wake when the first pin expires; each reader's are in order."""
        first = (next(iter(pins.values())).deadline for pins in self._pins.values() if pins)
        if self._alarm is None and (deadline := min(first, default=None)) is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm, now = None, time.monotonic()
        for peer, pins in self._pins.items():
            late = [number for number, pin in pins.items() if pin.deadline <= now]
            self.expired_pins += len(late)
            self.release(peer, late)
        self._set_alarm()
