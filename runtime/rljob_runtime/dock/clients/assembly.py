"""Assembly of the warehouses' answers into columns in the order of the requested rows. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_runtime.dock.clients.transport import ReadResult
from rljob_runtime.dock.columns import ChunkedColumn, Column, Ragged
from rljob_runtime.dock.recycled import concatenate
from rljob_runtime.dock.rows import RowMeta


def by_warehouse(rows: Sequence[RowMeta]) -> dict[int, list[int]]:
    """Return the indices of the rows of each warehouse."""
    indices: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row.warehouse, []).append(i)
    return indices


def copy_columns(
    rows: Sequence[RowMeta], columns: Sequence[str], results: Mapping[int, ReadResult]
) -> dict[str, Ragged]:
    """Copy the columns, one row for each of `rows`. results: by warehouse."""
    columns_by_name = {}
    for name, column in view_columns(rows, columns, results).items():
        is_view = isinstance(column, Ragged) and any(
            read_result.pin for read_result in results.values()
        )
        values = concatenate(column.arrays) if is_view else column.values
        columns_by_name[name] = Ragged(values=values, lengths=column.lengths)
    return columns_by_name


def view_columns(
    rows: Sequence[RowMeta], columns: Sequence[str], results: Mapping[int, ReadResult]
) -> dict[str, Column]:
    """Assemble the columns like `copy_columns`, without a copy: one array where all rows are contiguous."""
    indices = by_warehouse(rows)
    positions = [i for members in indices.values() for i in members]
    order = np.argsort(positions, kind="stable").tolist()
    columns_by_name: dict[str, Column] = {}
    for name in columns if rows else ():
        columns_by_warehouse = [
            _per_row([rows[i] for i in members], results[w], name) for w, members in indices.items()
        ]
        if len(columns_by_warehouse) == 1:
            columns_by_name[name] = columns_by_warehouse[0]
        else:
            cells = [row for column in columns_by_warehouse for row in column.rows()]
            columns_by_name[name] = ChunkedColumn([cells[i] for i in order])
    return columns_by_name


def _per_row(rows: Sequence[RowMeta], result: ReadResult, name: str) -> Column:
    """Return the column with a group's row repeated for each of its rows."""
    column = result.values[name]
    if name in result.of_groups:
        groups = dict.fromkeys((row.batch, row.group) for row in rows)
        if len(groups) < len(rows):
            group_index = {key: i for i, key in enumerate(groups)}
            return ChunkedColumn([column.row(group_index[row.batch, row.group]) for row in rows])
    return column
