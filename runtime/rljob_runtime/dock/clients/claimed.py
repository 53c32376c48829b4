"""Rows of a claim's answer as its caller sees them. Pure."""

from itertools import repeat

from rljob_runtime.dock.names import names_of
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import OF_ROWS, ClaimedRows, numbers_of


def rows_of(told: ClaimedRows, lease: str) -> tuple[RowMeta, ...]:
    """The rows, in their order. Raises MalformedFrame where the answer contradicts itself."""
    columns = told.columns
    try:
        uids, names = names_of(told.uids), names_of(told.groups)
        number = len(uids)
        values = numbers_of(told.numbers).reshape(len(OF_ROWS) + len(columns), number).tolist()
        places, index, size, sample, version, warehouse, attempt = values[: len(OF_ROWS)]
        groups = [names[place] for place in places]
    except (ValueError, IndexError) as error:
        raise MalformedFrame(f"claimed rows of {told.batch}: {error}") from None
    of_columns = values[len(OF_ROWS) :]
    if len(columns) == 1:
        lengths = [{columns[0]: length} for length in of_columns[0]]
    else:
        each = zip(*of_columns, strict=True)
        lengths = [dict(zip(columns, own, strict=True)) for own in each] or [{} for _ in uids]
    rows = zip(
        uids, repeat(told.batch), groups, index, size, sample, version, warehouse, lengths, attempt,
        repeat(lease),
        strict=False,
    )  # fmt: skip
    return tuple([tuple.__new__(RowMeta, row) for row in rows])
