"""How column bytes travel between a client and a warehouse.

`Transport` is the seam: messages stay as they are, bytes may go another way (an arena in shared
memory instead of the connection). `TcpTransport` sends them as the frames' payload.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rljob_runtime.dock.channel import Channel
from rljob_runtime.dock.columns import Ragged, decode_columns, encode_columns
from rljob_runtime.dock.frames import Fields, Kind


class Transport(Protocol):
    """The data path to one warehouse. Raises what `Channel.request` raises."""

    def put_rows(
        self,
        header: dict[str, Any],
        columns: Mapping[str, Ragged],
        group_columns: Mapping[str, Ragged],
        *,
        timeout_seconds: float,
    ) -> Fields:
        """New rows with their columns, and columns of their groups."""

    def write(
        self, header: dict[str, Any], columns: Mapping[str, Ragged], *, timeout_seconds: float
    ) -> Fields:
        """Columns of existing rows."""

    def read(
        self, uids: Sequence[str], columns: Sequence[str], *, timeout_seconds: float
    ) -> dict[str, tuple[Ragged, bool]]:
        """Columns of rows, and whether each is the groups': one row a group, as first met."""


class TcpTransport:
    """Bytes in the payload of the request or its answer."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def put_rows(
        self,
        header: dict[str, Any],
        columns: Mapping[str, Ragged],
        group_columns: Mapping[str, Ragged],
        *,
        timeout_seconds: float,
    ) -> Fields:
        """See Transport."""
        entries, buffers = encode_columns(columns)
        group_entries, group_buffers = encode_columns(group_columns)
        message = {**header, "columns": entries, "group_columns": group_entries}
        answer = self._channel.request(
            Kind.PUT_ROWS, message, [*buffers, *group_buffers], timeout_seconds=timeout_seconds
        )
        return answer.fields

    def write(
        self, header: dict[str, Any], columns: Mapping[str, Ragged], *, timeout_seconds: float
    ) -> Fields:
        """See Transport."""
        entries, buffers = encode_columns(columns)
        message = {**header, "columns": entries}
        answer = self._channel.request(
            Kind.WRITE, message, buffers, timeout_seconds=timeout_seconds
        )
        return answer.fields

    def read(
        self, uids: Sequence[str], columns: Sequence[str], *, timeout_seconds: float
    ) -> dict[str, tuple[Ragged, bool]]:
        """See Transport."""
        message = {"uids": list(uids), "columns": list(columns)}
        answer = self._channel.request(Kind.READ, message, timeout_seconds=timeout_seconds)
        entries = answer.fields.maps("columns")
        decoded = decode_columns(entries, answer.payload)
        return {e.text("name"): (decoded[e.text("name")], e.flag("of_groups")) for e in entries}
