"""Rows of a claim's answer as its caller sees them. Pure."""

from itertools import repeat

from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.wire.messages import ClaimedRows, numbers_of


def rows_of(told: ClaimedRows, lease: str) -> tuple[RowMeta, ...]:
    """The rows, in their order. Raises MalformedFrame, IndexError and ValueError where the answer lies."""
    columns = [*told.lengths]
    values = zip(*(numbers_of(told.lengths[name]).tolist() for name in columns), strict=True)
    lengths = [dict(zip(columns, own, strict=True)) for own in values]
    groups = [told.groups[place] for place in numbers_of(told.group).tolist()]
    index, size, sample, version, warehouse, attempt = (
        numbers_of(numbers).tolist()
        for numbers in (
            told.group_index,
            told.group_size,
            told.sample,
            told.version,
            told.warehouse,
            told.attempt,
        )
    )
    number = len(told.uids)
    return tuple(
        map(
            RowMeta,
            told.uids,
            repeat(told.batch, number),
            groups,
            index,
            size,
            sample,
            version,
            warehouse,
            lengths or [{} for _ in told.uids],
            attempt,
            repeat(lease, number),
        )
    )
