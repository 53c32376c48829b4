"""Transport of column bytes between a client and a warehouse.

They are written as payload of the request. They are read from the payload of the answer, or from the
warehouse's memory where the client has mapped it. The answer then has their location, and they do not change
until the client releases them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.bit_sums import matches_sum
from rljob_runtime.dock.clients.put import PutChunk
from rljob_runtime.dock.clients.warehouse_channel import MemoryMap, WarehouseChannel
from rljob_runtime.dock.columns import Column, Ragged
from rljob_runtime.dock.wire.encoding import (
    OutgoingColumns,
    decode_chunked_column,
    decode_column,
    decode_columns,
)
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import (
    PutResult,
    PutRows,
    Read,
    StoredColumn,
    Write,
    WriteResult,
)
from rljob_runtime.errors import DockError, DockLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin of bytes in a warehouse's memory, which do not change before `deadline`."""

    memory: MemoryMap
    number: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """The answer to a read.

    values: by column. of_groups: columns with one row a group, in order of first appearance. pin: of the
    warehouse's memory, which the values are views of; None: the caller owns them.
    """

    values: Mapping[str, Column]
    of_groups: frozenset[str]
    pin: Pin | None = None


class WarehouseTransport:
    """The data path to one warehouse. Raises what `Channel.request` raises."""

    def __init__(self, channel: WarehouseChannel) -> None:
        self._channel = channel

    def put_rows(
        self, batch: str, put: PutChunk, *, total: int, states: list[str], timeout_seconds: float
    ) -> PutResult:
        """Put new rows with their columns, and columns of their groups."""
        message = PutRows(batch=batch, total=total, states=states, rows=put.rows, columns=[])
        columns = OutgoingColumns(put.columns, put.group_columns)
        answer = self._channel.ask(message, columns, timeout_seconds=timeout_seconds)
        self._channel.keep_grant(answer.granted)
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
    ) -> WriteResult:
        """Write columns of existing rows."""
        message = Write(state=state, lease=lease, uids=uids, columns=[], version=version)
        outgoing = OutgoingColumns(columns) if columns else None
        answer = self._channel.ask(message, outgoing, timeout_seconds=timeout_seconds)
        self._channel.keep_grant(answer.granted)
        return answer

    def read(
        self, uids: Sequence[str], columns: Sequence[str], *, checked: bool, timeout_seconds: float
    ) -> ReadResult:
        """Read columns of rows; a pinned result must be released.

        checked: compare the sums of bits also where the result is pinned. Raises DockLost where a bit differs
        from what was written.
        """
        message = Read(uids=list(uids), columns=list(columns))
        sent_s = time.monotonic()
        answer, payload = self._channel.request(message, timeout_seconds=timeout_seconds)
        of_groups = frozenset(head.name for head in answer.columns if head.of_groups)
        memory = self._channel.memory
        try:
            if answer.pin is None or memory is None:
                values: Mapping[str, Column] = decode_columns(answer.columns, payload)
            else:
                values = {head.name: map_column(head, memory) for head in answer.columns}
        except MalformedFrame as error:
            self._channel.close()
            raise DockError(
                f"{self._channel.role} answered what cannot be read: {error}"
            ) from error
        pin = None
        if answer.pin is not None and memory is not None:
            pin = Pin(memory=memory, number=answer.pin, deadline=sent_s + memory.pin_seconds)
        heads = answer.columns if checked or pin is None else ()
        if damaged := [
            head.name for head in heads if not matches_sum(values[head.name], head.total)
        ]:
            if pin is not None:
                self.release(pin)
            raise DockLost(
                f"{', '.join(damaged)} of {len(uids)} rows in {self._channel.role} ({uids[0]} is the first) "
                "are not what was written there: bits of its memory flipped"
            )
        return ReadResult(values=values, of_groups=of_groups, pin=pin)

    def holds(self, pin: Pin) -> bool:
        """Return True when all data read under the pin until now was as it had been written."""
        return self._channel.memory is pin.memory and time.monotonic() < pin.deadline

    def release(self, pin: Pin) -> None:
        """Release a pin whose data is not used any more."""
        self._channel.release(pin.memory, [pin.number])


def map_column(head: StoredColumn, memory: MemoryMap) -> Column:
    """Return a column in a warehouse's memory, as views of it. Raises MalformedFrame."""
    if len(head.spans) % 16:
        raise MalformedFrame(f"spans of {len(head.spans)} bytes are no pairs of 64-bit integers")
    spans = np.frombuffer(head.spans, dtype="<i8").reshape(-1, 2).tolist()
    chunks = [memory.slice_of((start, end)) for start, end in spans]
    if len(chunks) > 1:
        return decode_chunked_column(head, chunks)
    return decode_column(head, chunks[0] if chunks else memoryview(b""))
