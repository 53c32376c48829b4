"""From what the warehouses answered to columns in the order of the rows that were asked for. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np

from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.transport import Found


def by_warehouse(rows: Sequence[RowMeta]) -> dict[int, list[int]]:
    """Places of the rows of each warehouse."""
    parts: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        parts.setdefault(row.warehouse, []).append(i)
    return parts


def assemble(
    rows: Sequence[RowMeta],
    columns: Sequence[str],
    found: Mapping[int, Found],
    *,
    copy: bool,
) -> dict[str, Ragged]:
    """The columns, one row for each of `rows`. found: by warehouse.

    copy: no value lies in a warehouse's memory any more; without it, those of rows of one warehouse
    that lie behind each other do, and cannot be written to.
    """
    parts = by_warehouse(rows)
    places = [i for part in parts.values() for i in part]
    order = np.argsort(places, kind="stable").tolist()
    result: dict[str, Ragged] = {}
    for name in columns if rows else ():
        pieces = [_per_row([rows[i] for i in part], found[w], name) for w, part in parts.items()]
        if len(pieces) > 1:
            cells = [row for piece, _ in pieces for row in piece.rows()]
            result[name] = Ragged.from_rows([cells[i] for i in order])
        else:
            ((column, is_view),) = pieces
            values = column.values.copy() if copy and is_view else column.values
            result[name] = Ragged(values=values, lengths=column.lengths)
    return result


def _per_row(rows: Sequence[RowMeta], found: Found, name: str) -> tuple[Ragged, bool]:
    """The column with a group's row repeated for each of its rows, and whether it is a view."""
    column = found.values[name]
    if name in found.of_groups:
        groups = dict.fromkeys((row.batch, row.group) for row in rows)
        if len(groups) < len(rows):
            place = {key: i for i, key in enumerate(groups)}
            return column.take([place[row.batch, row.group] for row in rows]), False
    return column, name in found.borrowed
