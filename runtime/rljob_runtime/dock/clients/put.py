"""Put messages: new rows divided by warehouse, whole groups together, in bounded chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.columns import ChunkedColumn
from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.wire.messages import NewRows, pack_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class PutChunk:
    """The rows and columns of one put message."""

    rows: NewRows
    columns: dict[str, ChunkedColumn]
    group_columns: dict[str, ChunkedColumn]


def warehouse_of(group_index: int, num_warehouses: int) -> int:
    """Return the warehouse of a group: groups are assigned round robin, so each gets its share of every
    batch."""
    return group_index % num_warehouses


def build_puts(
    rows: Sequence[NewRow], num_warehouses: int, chunk_bytes: int
) -> dict[int, list[PutChunk]]:
    """Return the messages for each warehouse. chunk_bytes: bound of one message, unless a group is larger.

    Raises ValueError when the rows of one group disagree on its index.
    """
    groups: dict[str, list[NewRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
        if groups[row.group][0].group_index != row.group_index:
            raise ValueError(
                f"rows of group {row.group} have group_index {row.group_index} and "
                f"{groups[row.group][0].group_index}; a group has one"
            )
    puts: dict[int, list[PutChunk]] = {}
    chunks: dict[int, tuple[int, list[list[NewRow]]]] = {}
    for members in groups.values():
        warehouse = warehouse_of(members[0].group_index, num_warehouses)
        size = _group_bytes(members)
        num_bytes, chunk = chunks.get(warehouse, (0, []))
        if chunk and num_bytes + size > chunk_bytes:
            puts.setdefault(warehouse, []).append(_put(chunk))
            num_bytes, chunk = 0, []
        chunk.append(members)
        chunks[warehouse] = (num_bytes + size, chunk)
    for warehouse, (_, chunk) in chunks.items():
        puts.setdefault(warehouse, []).append(_put(chunk))
    return puts


def _group_bytes(members: Sequence[NewRow]) -> int:
    num_bytes = sum([np.asarray(v).nbytes for v in members[0].group_columns.values()])
    for row in members:
        num_bytes += sum([np.asarray(v).nbytes for v in row.columns.values()]) + row.reserve_bytes
    return num_bytes


def _put(groups: Sequence[Sequence[NewRow]]) -> PutChunk:
    rows = [row for members in groups for row in members]
    firsts = [members[0] for members in groups]
    return PutChunk(
        rows=NewRows(
            names=pack_names([row.uid for row in rows]),
            versions=_numbers([row.version for row in rows]),
            reserves=_numbers([row.reserve_bytes for row in rows]),
            groups=pack_names([first.group for first in firsts]),
            sizes=_numbers([len(members) for members in groups]),
            indexes=_numbers([first.group_index for first in firsts]),
        ),
        columns={
            n: ChunkedColumn([np.asarray(row.columns[n]) for row in rows]) for n in rows[0].columns
        },
        group_columns={
            name: ChunkedColumn([np.asarray(first.group_columns[name]) for first in firsts])
            for name in firsts[0].group_columns
        },
    )


def _numbers(values: Sequence[int]) -> bytes:
    return pack_numbers(np.array(values, dtype=np.int64))
