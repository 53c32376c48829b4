"""What a put of new rows must satisfy, checked by the warehouse's store before it takes any. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.dock.batch_record import BatchRecord, StoredRow
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.frames import MalformedFrame
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.errors import DockLost, DockRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class RowHead:
    """A new row's identity, as a put message carries it."""

    uid: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    reserve_bytes: int


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
    columns: Mapping[str, Ragged],
    group_columns: Mapping[str, Ragged],
) -> None:
    """Refuse heads and columns that do not fit each other or what is there."""
    sizes = Counter(head.group for head in heads)
    for head in heads:
        if head.group_size != sizes[head.group]:
            raise DockRefused(
                f"group {head.group} has {head.group_size} rows, this put {sizes[head.group]}; "
                "put all rows of a group at once"
            )
    for expected, part in ((len(heads), columns), (len(sizes), group_columns)):
        for name, column in part.items():
            if len(column) != expected:
                raise DockRefused(
                    f"column {name} has {len(column)} rows; {record.name} needs {expected}"
                )
    if len({head.uid for head in heads}) != len(heads):
        raise DockRefused(f"two new rows of {record.name} have one uid")
    record.check_formats(columns)
    record.check_formats(group_columns)
    for head in heads:
        other = live.get(head.uid)
        if other is not None and (other.batch, other.head.group) != (record.name, head.group):
            raise DockRefused(f"row {head.uid} is in group {other.head.group} already")


def total_row_bytes(columns: Mapping[str, Ragged], num_rows: int) -> list[int]:
    """Bytes of each row over all columns."""
    per_column = [column.row_bytes() for column in columns.values()]
    return [sum(sizes[i] for sizes in per_column) for i in range(num_rows)]


def row_head(item: Any) -> RowHead:
    """A new row from its wire form. Raises MalformedFrame."""
    try:
        uid, group, group_index, group_size, sample, version, reserve_bytes = item
    except (TypeError, ValueError):
        raise MalformedFrame("a new row is no list of seven") from None
    numbers = (group_index, group_size, sample, version, reserve_bytes)
    if not (type(uid) is type(group) is str) or any(type(n) is not int for n in numbers):
        raise MalformedFrame(f"a new row has fields of a wrong type: {item!r:.200}")
    if min(group_index, group_size, sample, reserve_bytes) < 0:
        raise MalformedFrame(f"a new row has a negative field: {item!r:.200}")
    return RowHead(
        uid=uid,
        group=group,
        group_index=group_index,
        group_size=group_size,
        sample=sample,
        version=version,
        reserve_bytes=reserve_bytes,
    )
