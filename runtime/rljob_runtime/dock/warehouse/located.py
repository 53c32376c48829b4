"""Location of rows' columns in a warehouse's memory. Pure."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.columns import Format
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.named_rows import NamedRows
from rljob_runtime.dock.warehouse.placed_columns import MissingColumn
from rljob_runtime.dock.warehouse.slabs import SlabRun
from rljob_runtime.errors import DockRefused


class ColumnLocation(NamedTuple):
    """The location of a column: one value a row, or if `of_groups` one a group, in order of first
    appearance."""

    name: str
    form: Format
    of_groups: bool
    runs: list[SlabRun]


def locate_columns(named: Sequence[NamedRows], columns: Sequence[str]) -> list[ColumnLocation]:
    """Locate columns of rows, in the order of their positions. Raises DockRefused where a row or batch lacks
    one."""
    forms = {column: _form(named, column) for column in columns}
    shared = frozenset[str]().union(*[rows.record.columns.shared for rows in named])
    if len(named) == 1:
        runs = _find(named[0].record, columns, named[0].numbers)
    else:
        runs = {name: _one_by_one(named, name, name in shared) for name in columns}
    return [ColumnLocation(name, form, name in shared, runs[name]) for name, form in forms.items()]


def _form(named: Sequence[NamedRows], column: str) -> Format:
    forms = {rows.record.columns.formats.get(column) for rows in named}
    form: Format | None = forms.pop() if len(forms) == 1 else None
    if form is None:
        names = [rows.record.name for rows in named]
        raise DockRefused(f"column {column!r} was not written to every batch of {names}")
    return form


def _find(record: BatchRecord, columns: Sequence[str], numbers: Array) -> dict[str, list[SlabRun]]:
    try:
        return record.columns.find(columns, numbers)
    except MissingColumn as error:
        (uid,) = record.uids(np.array([error.number]))
        raise DockRefused(f"row {uid} has no column {error.column!r} yet") from None


def _one_by_one(named: Sequence[NamedRows], column: str, of_groups: bool) -> list[SlabRun]:
    """Locate a column of rows of several batches."""
    rows = _in_order(named)
    if of_groups:
        groups = dict.fromkeys(
            (record, *record.columns.groups_of(numbers).tolist()) for record, numbers in rows
        )
        runs = [record.columns.group_runs(np.array([group])) for record, group in groups]
    else:
        runs = [_find(record, [column], numbers)[column] for record, numbers in rows]
    return [*chain.from_iterable(runs)]


def _in_order(named: Sequence[NamedRows]) -> list[tuple[BatchRecord, Array]]:
    """Return the batch of each row, and an array with its number alone."""
    rows = [
        (position, record, numbers[i : i + 1])
        for record, positions, numbers in named
        for i, position in enumerate(positions.tolist())
    ]
    return [(record, row_number) for _, record, row_number in sorted(rows, key=lambda row: row[0])]
