"""Where the columns of rows lie in a warehouse's memory. Pure."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from rljob_runtime.dock.columns import Format
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.warehouse.batch_record import BatchRecord
from rljob_runtime.dock.warehouse.named_rows import Named
from rljob_runtime.dock.warehouse.placed_columns import Lacking
from rljob_runtime.dock.warehouse.slabs import Run
from rljob_runtime.errors import DockRefused


class Located(NamedTuple):
    """Where a column is: one value a row, or where it is `of_groups` one a group, in order of their
    first appearance."""

    name: str
    form: Format
    of_groups: bool
    runs: list[Run]


def located(named: Sequence[Named], columns: Sequence[str]) -> list[Located]:
    """Columns of rows, in the order of their places. Raises DockRefused where a row or batch lacks one."""
    forms = {column: _form(named, column) for column in columns}
    shared = frozenset[str]().union(*[own.record.columns.shared for own in named])
    if len(named) == 1:
        found = _find(named[0].record, columns, named[0].numbers)
    else:
        found = {name: _one_by_one(named, name, name in shared) for name in columns}
    return [Located(name, form, name in shared, found[name]) for name, form in forms.items()]


def _form(named: Sequence[Named], column: str) -> Format:
    forms = {own.record.columns.formats.get(column) for own in named}
    form: Format | None = forms.pop() if len(forms) == 1 else None
    if form is None:
        names = [own.record.name for own in named]
        raise DockRefused(f"column {column!r} was not written to every batch of {names}")
    return form


def _find(record: BatchRecord, columns: Sequence[str], numbers: Array) -> dict[str, list[Run]]:
    try:
        return record.columns.find(columns, numbers)
    except Lacking as error:
        (uid,) = record.uids(np.array([error.number]))
        raise DockRefused(f"row {uid} has no column {error.column!r} yet") from None


def _one_by_one(named: Sequence[Named], column: str, of_groups: bool) -> list[Run]:
    """Of rows of several batches."""
    rows = _in_order(named)
    if of_groups:
        groups = dict.fromkeys(
            (record, *record.columns.groups_of(own).tolist()) for record, own in rows
        )
        found = [record.columns.group_runs(np.array([group])) for record, group in groups]
    else:
        found = [_find(record, [column], own)[column] for record, own in rows]
    return [*chain.from_iterable(found)]


def _in_order(named: Sequence[Named]) -> list[tuple[BatchRecord, Array]]:
    """Row by row: its batch, and an array with its number alone."""
    rows = [
        (place, record, numbers[i : i + 1])
        for record, places, numbers in named
        for i, place in enumerate(places.tolist())
    ]
    return [(record, own) for _, record, own in sorted(rows, key=lambda row: row[0])]
