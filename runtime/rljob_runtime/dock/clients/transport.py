"""How column bytes travel between a client and a warehouse.

They are written as payload of the request. They are read from the payload of the answer, or from the
warehouse's memory where the client has mapped it: the answer then says where they lie, and they stay
as they are until the client releases them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rljob_runtime.dock.clients.warehouse_channel import MemoryMap, WarehouseChannel
from rljob_runtime.dock.columns import Apart, Column, Ragged
from rljob_runtime.dock.wire.encoding import apart_of, column_of, decode_columns, encode_columns
from rljob_runtime.dock.wire.frames import Fields, Kind, MalformedFrame
from rljob_runtime.errors import DockError


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
        self,
        header: dict[str, Any],
        columns: Mapping[str, Apart],
        group_columns: Mapping[str, Apart],
        *,
        timeout_seconds: float,
    ) -> Fields:
        """New rows with their columns, and columns of their groups."""
        entries, buffers = encode_columns(columns)
        group_entries, group_buffers = encode_columns(group_columns)
        message = {**header, "columns": entries, "group_columns": group_entries}
        answer = self._channel.request(
            Kind.PUT_ROWS, message, [*buffers, *group_buffers], timeout_seconds=timeout_seconds
        )
        return answer.fields

    def write(
        self, header: dict[str, Any], columns: Mapping[str, Ragged], *, timeout_seconds: float
    ) -> Fields:
        """Columns of existing rows."""
        entries, buffers = encode_columns(columns)
        message = {**header, "columns": entries}
        answer = self._channel.request(
            Kind.WRITE, message, buffers, timeout_seconds=timeout_seconds
        )
        return answer.fields

    def read(self, uids: Sequence[str], columns: Sequence[str], *, timeout_seconds: float) -> Found:
        """Columns of rows. What is borrowed must be released."""
        message = {"uids": list(uids), "columns": list(columns)}
        asked = time.monotonic()
        answer = self._channel.request(Kind.READ, message, timeout_seconds=timeout_seconds)
        try:
            entries = answer.fields.maps("columns")
            of_groups = frozenset(e.text("name") for e in entries if e.flag("of_groups"))
            memory = self._channel.memory
            if not answer.fields.has("pin") or memory is None:
                return Found(values=decode_columns(entries, answer.payload), of_groups=of_groups)
            located = {e.text("name"): locate(e, memory) for e in entries}
        except MalformedFrame as error:
            self._channel.close()
            raise DockError(
                f"{self._channel.role} answered what cannot be read: {error}"
            ) from error
        pin = Pin(
            memory=memory,
            number=answer.fields.integer("pin"),
            deadline=asked + memory.pin_seconds,
        )
        return Found(values=located, of_groups=of_groups, pin=pin)

    def holds(self, pin: Pin) -> bool:
        """True when all that was looked at under the pin until now was as it had been written."""
        return self._channel.memory is pin.memory and time.monotonic() < pin.deadline

    def release(self, pin: Pin) -> None:
        """Nothing is looked at under the pin any more."""
        self._channel.release(pin.memory, [pin.number])


def locate(entry: Fields, memory: MemoryMap) -> Column:
    """A column in a warehouse's memory, as views of it. Raises MalformedFrame."""
    packed = entry.binary("spans")
    if len(packed) % 16:
        raise MalformedFrame(f"spans of {len(packed)} bytes are no pairs of 64-bit integers")
    spans = np.frombuffer(packed, dtype="<i8").reshape(-1, 2).tolist()
    parts = [memory.part((start, end)) for start, end in spans]
    if len(parts) > 1:
        return apart_of(entry, parts)
    return column_of(entry, parts[0] if parts else memoryview(b""))
