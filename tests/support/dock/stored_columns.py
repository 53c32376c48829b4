"""Columns as a warehouse stores them, of those that a test made."""

from rljob_runtime.dock.columns import PackedColumn, Ragged
from rljob_runtime.dock.wire.encoding import OutgoingColumns, decode_packed_columns
from rljob_runtime.dock.wire.messages import NewColumn


def encoded(
    columns: dict[str, Ragged], group_columns: dict[str, Ragged] | None = None
) -> tuple[list[NewColumn], bytes]:
    """As the wire has them: what describes each, and their bytes one after another."""
    heads, parts = OutgoingColumns(columns, group_columns or {}).payload()
    return heads, b"".join(parts)


def stored(column: Ragged) -> PackedColumn:
    """A column that came with a message."""
    heads, payload = encoded({"column": column})
    return decode_packed_columns(heads, memoryview(payload))["column"]
