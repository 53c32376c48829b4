"""The rows of a claim's answer as its caller sees them. Pure."""

from itertools import repeat

from rljob_runtime.dock.names import unpack_names
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.dock.wire.frames import MalformedFrame
from rljob_runtime.dock.wire.messages import OF_ROWS, ClaimedRows, unpack_numbers


def decode_rows(answer: ClaimedRows, lease: str) -> tuple[RowMeta, ...]:
    """Return the rows, in order. Raises MalformedFrame where the answer contradicts itself."""
    columns = answer.columns
    try:
        uids, names = unpack_names(answer.uids), unpack_names(answer.groups)
        num_rows = len(uids)
        values = (
            unpack_numbers(answer.numbers).reshape(len(OF_ROWS) + len(columns), num_rows).tolist()
        )
        group_indices, index, size, sample, version, warehouse, attempt = values[: len(OF_ROWS)]
        groups = [names[group_index] for group_index in group_indices]
    except (ValueError, IndexError) as error:
        raise MalformedFrame(f"claimed rows of {answer.batch}: {error}") from None
    of_columns = values[len(OF_ROWS) :]
    if len(columns) == 1:
        lengths = [{columns[0]: length} for length in of_columns[0]]
    else:
        lengths_by_row = zip(*of_columns, strict=True)
        lengths = [
            dict(zip(columns, row_lengths, strict=True)) for row_lengths in lengths_by_row
        ] or [{} for _ in uids]
    rows = zip(
        uids, repeat(answer.batch), groups, index, size, sample, version, warehouse, lengths, attempt,
        repeat(lease),
        strict=False,
    )  # fmt: skip
    return tuple([tuple.__new__(RowMeta, row) for row in rows])
