"""From what the warehouses answered to columns in the order of the rows that were asked for. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_runtime.dock.clients.transport import Found
from rljob_runtime.dock.columns import Apart, Column, Ragged
from rljob_runtime.dock.recycled import joined
from rljob_runtime.dock.rows import RowMeta


def by_warehouse(rows: Sequence[RowMeta]) -> dict[int, list[int]]:
    """Places of the rows of each warehouse."""
    parts: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        parts.setdefault(row.warehouse, []).append(i)
    return parts


def copied(
    rows: Sequence[RowMeta], columns: Sequence[str], found: Mapping[int, Found]
) -> dict[str, Ragged]:
    """The columns, one row for each of `rows`, in memory of their own. found: by warehouse."""
    result = {}
    for name, column in viewed(rows, columns, found).items():
        borrowed = isinstance(column, Ragged) and any(part.pin for part in found.values())
        values = joined(column.arrays) if borrowed else column.values
        result[name] = Ragged(values=values, lengths=column.lengths)
    return result


def viewed(
    rows: Sequence[RowMeta], columns: Sequence[str], found: Mapping[int, Found]
) -> dict[str, Column]:
    """As copied, without a copy: as one array where all rows lie behind each other."""
    parts = by_warehouse(rows)
    places = [i for part in parts.values() for i in part]
    order = np.argsort(places, kind="stable").tolist()
    result: dict[str, Column] = {}
    for name in columns if rows else ():
        pieces = [_per_row([rows[i] for i in part], found[w], name) for w, part in parts.items()]
        if len(pieces) == 1:
            result[name] = pieces[0]
        else:
            cells = [row for piece in pieces for row in piece.rows()]
            result[name] = Apart([cells[i] for i in order])
    return result


def _per_row(rows: Sequence[RowMeta], found: Found, name: str) -> Column:
    """The column with a group's row repeated for each of its rows."""
    column = found.values[name]
    if name in found.of_groups:
        groups = dict.fromkeys((row.batch, row.group) for row in rows)
        if len(groups) < len(rows):
            place = {key: i for i, key in enumerate(groups)}
            return Apart([column.row(place[row.batch, row.group]) for row in rows])
    return column
