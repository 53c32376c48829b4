"""Messages that change a warehouse's store: read once, carried out there and then at its standby.

Pure. The same changes in the same order make the same store, which is what the standby rests on.
"""

from collections.abc import Callable, Mapping
from functools import partial

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.warehouse.slabs import Grant
from rljob_runtime.dock.warehouse.store import WarehouseStore
from rljob_runtime.dock.wire.encoding import packed_columns
from rljob_runtime.dock.wire.frames import MalformedFrame, Message
from rljob_runtime.dock.wire.messages import Forward, Freed, PutRows, Stored, Write

Change = Callable[[WarehouseStore], Message]
"""Carries a message out and returns its answer. Raises what the store raises, and has then changed
nothing."""


def change_of(message: Forward, payload: memoryview, grant: Grant | None = None) -> Change:
    """What the message says. grant: that the payload lies in. Raises MalformedFrame."""
    put, write, drop = message.put, message.write, message.drop
    if put is not None:
        columns = packed_columns(put.columns, payload)
        of_groups = [head.name for head in put.columns if head.of_groups]
        group_columns = {name: columns.pop(name) for name in of_groups}
        return partial(_put, put, columns, group_columns, grant)
    if write is not None:
        return partial(_write, write, packed_columns(write.columns, payload), grant)
    if drop is not None:
        return lambda store: Freed(freed=store.drop_batch(drop.batch))
    raise MalformedFrame("Forward has no change")


def _put(
    message: PutRows,
    columns: Mapping[str, Packed],
    group_columns: Mapping[str, Packed],
    grant: Grant | None,
    store: WarehouseStore,
) -> Message:
    new = store.put_rows(
        message.batch,
        total=message.total,
        states=message.states,
        rows=message.rows,
        columns=columns,
        group_columns=group_columns,
        grant=grant,
    )
    return Stored(stored=new)


def _write(
    message: Write, columns: Mapping[str, Packed], grant: Grant | None, store: WarehouseStore
) -> Message:
    return store.write(
        state=message.state,
        lease=message.lease,
        uids=message.uids,
        columns=columns,
        version=message.version,
        grant=grant,
    )
