"""New rows cut into put messages: by warehouse, whole groups together, in bounded chunks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.columns import Apart
from rljob_runtime.dock.names import pack_names
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.wire.messages import NewRows, packed


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """One put message's rows and columns."""

    rows: NewRows
    columns: dict[str, Apart]
    group_columns: dict[str, Apart]


def warehouse_of(group_index: int, num_warehouses: int) -> int:
    """Where a group lives: groups go round the warehouses, so each gets its part of every batch."""
    return group_index % num_warehouses


def puts_of(rows: Sequence[NewRow], num_warehouses: int, chunk_bytes: int) -> dict[int, list[Put]]:
    """Messages for each warehouse. chunk_bytes: bound of one message, unless a group is larger.

    Raises ValueError when the rows of one group disagree on its number.
    """
    groups: dict[str, list[NewRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
        if groups[row.group][0].group_index != row.group_index:
            raise ValueError(
                f"rows of group {row.group} have group_index {row.group_index} and "
                f"{groups[row.group][0].group_index}; a group has one"
            )
    puts: dict[int, list[Put]] = {}
    chunks: dict[int, tuple[int, list[list[NewRow]]]] = {}
    for members in groups.values():
        warehouse = warehouse_of(members[0].group_index, num_warehouses)
        size = _group_bytes(members)
        held, chunk = chunks.get(warehouse, (0, []))
        if chunk and held + size > chunk_bytes:
            puts.setdefault(warehouse, []).append(_put(chunk))
            held, chunk = 0, []
        chunk.append(members)
        chunks[warehouse] = (held + size, chunk)
    for warehouse, (_, chunk) in chunks.items():
        puts.setdefault(warehouse, []).append(_put(chunk))
    return puts


def _group_bytes(members: Sequence[NewRow]) -> int:
    num_bytes = sum([np.asarray(v).nbytes for v in members[0].group_columns.values()])
    for row in members:
        num_bytes += sum([np.asarray(v).nbytes for v in row.columns.values()]) + row.reserve_bytes
    return num_bytes


def _put(groups: Sequence[Sequence[NewRow]]) -> Put:
    rows = [row for members in groups for row in members]
    firsts = [members[0] for members in groups]
    return Put(
        rows=NewRows(
            names=pack_names([row.uid for row in rows]),
            versions=_numbers([row.version for row in rows]),
            reserves=_numbers([row.reserve_bytes for row in rows]),
            groups=pack_names([first.group for first in firsts]),
            sizes=_numbers([len(members) for members in groups]),
            indexes=_numbers([first.group_index for first in firsts]),
        ),
        columns={n: Apart([np.asarray(row.columns[n]) for row in rows]) for n in rows[0].columns},
        group_columns={
            name: Apart([np.asarray(first.group_columns[name]) for first in firsts])
            for name in firsts[0].group_columns
        },
    )


def _numbers(values: Sequence[int]) -> bytes:
    return packed(np.array(values, dtype=np.int64))
