"""What a put of new rows must satisfy, checked by the warehouse's store before it takes any. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rljob_runtime.dock.columns import Packed
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.warehouse.batch_record import BatchRecord, StoredRow
from rljob_runtime.dock.wire.messages import RowHead
from rljob_runtime.errors import DockLost, DockRefused


def batch_for_put(
    known: BatchRecord | None,
    graph: StateGraph,
    batch: str,
    *,
    total: int,
    states: Sequence[str],
    columns: Sequence[str],
) -> BatchRecord:
    """The batch's record, a new one for a new batch. Raises DockRefused, DockLost."""
    if known is None:
        graph.check_new_rows(batch, states, columns)
        return BatchRecord(name=batch, total=total, states=tuple(states))
    if known.dropped:
        raise DockLost(f"batch {batch} was dropped; put its rows under another name")
    if (known.total, known.states) != (total, tuple(states)):
        raise DockRefused(
            f"batch {batch} was put with total={known.total} and states "
            f"{list(known.states)}, now with total={total} and states {list(states)}"
        )
    return known


def check_put(
    record: BatchRecord,
    live: Mapping[str, StoredRow],
    heads: Sequence[RowHead],
    columns: Mapping[str, Packed],
    group_columns: Mapping[str, Packed],
) -> None:
    """Refuse heads and columns that do not fit each other or what is there."""
    sizes = Counter([head.group for head in heads])
    before, sample = "", 0
    for head in heads:
        if head.group_size != sizes[head.group]:
            raise DockRefused(
                f"group {head.group} has {head.group_size} rows, this put {sizes[head.group]}; "
                "put all rows of a group at once"
            )
        sample = sample + 1 if head.group == before else 0
        before = head.group
        if head.sample != sample:
            raise DockRefused(
                f"row {head.uid} is sample {head.sample} of group {head.group} and comes as its "
                f"{sample + 1}.; put a group's rows one behind the other, in their order"
            )
    for expected, part in ((len(heads), columns), (len(sizes), group_columns)):
        for name, column in part.items():
            if len(column.lengths) != expected:
                raise DockRefused(
                    f"column {name} has {len(column.lengths)} rows; {record.name} needs {expected}"
                )
    if len({head.uid for head in heads}) != len(heads):
        raise DockRefused(f"two new rows of {record.name} have one uid")
    known = Counter([head.group for head in heads if record.knows(head.uid)])
    for group, count in known.items():
        if count != sizes[group]:
            raise DockRefused(f"group {group} was put with other rows than these {sizes[group]}")
    record.check_formats(columns)
    record.check_formats(group_columns)
    for head in heads:
        other = live.get(head.uid)
        if other is not None and (other.batch, other.head.group) != (record.name, head.group):
            raise DockRefused(f"row {head.uid} is in group {other.head.group} already")


def total_row_bytes(columns: Mapping[str, Packed], num_rows: int) -> list[int]:
    """Bytes of each row over all columns."""
    if not columns:
        return [0] * num_rows
    return [sum(sizes) for sizes in zip(*[c.sizes for c in columns.values()], strict=True)]
