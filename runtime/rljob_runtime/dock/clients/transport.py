"""How column bytes travel between a client and a warehouse.

They are written as payload of the request. They are read from the payload of the answer, or from the
warehouse's memory where the client has mapped it: the answer then says where they lie, and they stay
as they are until the client releases them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.bit_sums import fits
from rljob_runtime.dock.clients.put import Put
from rljob_runtime.dock.clients.warehouse_channel import MemoryMap, WarehouseChannel
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.wire.encoding import Outgoing, apart_of, column_of, decode_columns
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import FoundColumn, PutRows, Read, Stored, Write, Written
from rljob_runtime.errors import DockError, DockLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What keeps bytes in a warehouse's memory as they are. deadline: until then at most."""

    memory: MemoryMap
    number: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a read found. values: by column. of_groups: columns with one row a group, as first met.

    pin: of the warehouse's memory, which the values are views of; None: they are the caller's own.
    """

    values: Mapping[str, Column]
    of_groups: frozenset[str]
    pin: Pin | None = None


class WarehouseTransport:
    """The data path to one warehouse. Raises what `Channel.request` raises."""

    def __init__(self, channel: WarehouseChannel) -> None:
        self._channel = channel

    def put_rows(
        self, batch: str, put: Put, *, total: int, states: list[str], timeout_seconds: float
    ) -> Stored:
        """New rows with their columns, and columns of their groups."""
        message = PutRows(batch=batch, total=total, states=states, rows=put.rows, columns=[])
        columns = Outgoing(put.columns, put.group_columns)
        answer = self._channel.ask(message, columns, timeout_seconds=timeout_seconds)
        self._channel.granted(answer.granted)
        return answer

    def write(
        self,
        columns: Mapping[str, Ragged],
        *,
        state: str,
        lease: str,
        uids: list[str],
        version: int | None,
        timeout_seconds: float,
    ) -> Written:
        """Columns of existing rows."""
        message = Write(state=state, lease=lease, uids=uids, columns=[], version=version)
        outgoing = Outgoing(columns) if columns else None
        answer = self._channel.ask(message, outgoing, timeout_seconds=timeout_seconds)
        self._channel.granted(answer.granted)
        return answer

    def read(
        self, uids: Sequence[str], columns: Sequence[str], *, checked: bool, timeout_seconds: float
    ) -> Found:
        """Columns of rows. What is borrowed must be released. checked: compare the sums of their bits also
        where they are borrowed. Raises DockLost where a bit is not what was written."""
        message = Read(uids=list(uids), columns=list(columns))
        asked = time.monotonic()
        answer, payload = self._channel.request(message, timeout_seconds=timeout_seconds)
        of_groups = frozenset(head.name for head in answer.columns if head.of_groups)
        memory = self._channel.memory
        try:
            if answer.pin is None or memory is None:
                values: Mapping[str, Column] = decode_columns(answer.columns, payload)
            else:
                values = {head.name: locate(head, memory) for head in answer.columns}
        except MalformedFrame as error:
            self._channel.close()
            raise DockError(
                f"{self._channel.role} answered what cannot be read: {error}"
            ) from error
        pin = None
        if answer.pin is not None and memory is not None:
            pin = Pin(memory=memory, number=answer.pin, deadline=asked + memory.pin_seconds)
        heads = answer.columns if checked or pin is None else ()
        if wrong := [head.name for head in heads if not fits(values[head.name], head.total)]:
            if pin is not None:
                self.release(pin)
            raise DockLost(
                f"{', '.join(wrong)} of {len(uids)} rows in {self._channel.role} ({uids[0]} is the first) "
                "are not what was written there: bits of its memory flipped"
            )
        return Found(values=values, of_groups=of_groups, pin=pin)

    def holds(self, pin: Pin) -> bool:
        """True when all that was looked at under the pin until now was as it had been written."""
        return self._channel.memory is pin.memory and time.monotonic() < pin.deadline

    def release(self, pin: Pin) -> None:
        """Nothing is looked at under the pin any more."""
        self._channel.release(pin.memory, [pin.number])


def locate(head: FoundColumn, memory: MemoryMap) -> Column:
    """A column in a warehouse's memory, as views of it. Raises MalformedFrame."""
    if len(head.spans) % 16:
        raise MalformedFrame(f"spans of {len(head.spans)} bytes are no pairs of 64-bit integers")
    spans = np.frombuffer(head.spans, dtype="<i8").reshape(-1, 2).tolist()
    parts = [memory.part((start, end)) for start, end in spans]
    if len(parts) > 1:
        return apart_of(head, parts)
    return column_of(head, parts[0] if parts else memoryview(b""))
