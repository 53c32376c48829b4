"""Messages that change a warehouse's store: parsed once, carried out by the warehouse and then by its
standby.

Pure. The same changes in the same order produce the same store; the standby relies on that.
"""

from collections.abc import Callable, Mapping
from functools import partial

from rljob_runtime.dock.columns import PackedColumn
from rljob_runtime.dock.warehouse.slabs import GrantedSpan
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.encoding import decode_packed_columns
from rljob_runtime.dock.wire.frames import DockMessage, MalformedFrame
from rljob_runtime.dock.wire.messages import DropResult, Forward, PutResult, PutRows, Write

Change = Callable[[WarehouseStore], DockMessage]
"""Carries a message out and returns its answer. Raises what the store raises, and then has changed
nothing."""


def parse_change(message: Forward, payload: memoryview, grant: GrantedSpan | None = None) -> Change:
    """Parse the change of a message. grant: the span that contains the payload. Raises MalformedFrame."""
    put, write, drop = message.put, message.write, message.drop
    if put is not None:
        columns = decode_packed_columns(put.columns, payload)
        of_groups = [head.name for head in put.columns if head.of_groups]
        group_columns = {name: columns.pop(name) for name in of_groups}
        return partial(_put, put, columns, group_columns, grant)
    if write is not None:
        return partial(_write, write, decode_packed_columns(write.columns, payload), grant)
    if drop is not None:
        return lambda store: DropResult(freed=store.drop_batch(drop.batch))
    raise MalformedFrame("Forward has no change")


def _put(
    message: PutRows,
    columns: Mapping[str, PackedColumn],
    group_columns: Mapping[str, PackedColumn],
    grant: GrantedSpan | None,
    store: WarehouseStore,
) -> DockMessage:
    num_new = store.put_rows(
        message.batch,
        total=message.total,
        states=message.states,
        rows=message.rows,
        columns=columns,
        group_columns=group_columns,
        grant=grant,
    )
    return PutResult(stored=num_new)


def _write(
    message: Write,
    columns: Mapping[str, PackedColumn],
    grant: GrantedSpan | None,
    store: WarehouseStore,
) -> DockMessage:
    return store.write(
        state=message.state,
        lease=message.lease,
        uids=message.uids,
        columns=columns,
        version=message.version,
        grant=grant,
    )
