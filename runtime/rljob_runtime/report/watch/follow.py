"""Events of a run as they come to its log, which others write: on this machine, or in a job's head.

Called by `on_terminal` and `live_document`. Where bytes come from is a function: `read_file` here,
`cluster.events` there.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.record.event_types import Event
from rljob_runtime.record.events import events_in, garbage_collection_paused

PIECE_BYTES = 16 * 2**20
FILE_PIECE_BYTES = 2**20
"""Of a file of this machine: events take several times the memory of their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of a growing file from an offset on. identity: another one tells of another file in its place.
    size: of the whole file."""

    identity: str
    size: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Events since the last look. afresh: they are of another log; those of before are void. more: the next
    look brings others at once."""

    events: list[Event]
    afresh: bool = False
    more: bool = False


Read = Callable[[int], Piece | None]
"""From an offset on, a piece at most; None without a file. Raises RljobError."""


class Follower:
    """Gives each event once. A line without its end waits for it; lines that are no event are left out.
    brief_bytes: of the log's beginning, of which phases, docks and samples are left out."""

    def __init__(self, read: Read, *, brief_bytes: float = 0) -> None:
        self._read = read
        self._brief_bytes = brief_bytes
        self._identity: str | None = None
        self._offset = 0
        self._torn = b""

    def news(self) -> News:
        """What has come, a piece of the file at a time. A file that is not there brings nothing; one that
        shrank or was replaced is read from its beginning."""
        afresh = False
        while (piece := self._read(self._offset)) is not None:
            if self._is_another(piece):
                afresh = self._identity is not None
                self._identity, self._torn = piece.identity, b""
                if self._offset:
                    self._offset, self._brief_bytes = 0, 0
                    continue
            self._offset += len(piece.data)
            more = self._offset < piece.size and bool(piece.data)
            return News(events=self._whole(piece.data), afresh=afresh, more=more)
        return News(events=[], afresh=afresh)

    def _is_another(self, piece: Piece) -> bool:
        return piece.identity != self._identity or piece.size < self._offset

    def _whole(self, data: bytes) -> list[Event]:
        *lines, self._torn = (self._torn + data).split(b"\n")
        with garbage_collection_paused():
            return list(events_in(lines, brief=self._offset < self._brief_bytes))


def read_file(path: Path) -> Read:
    """How to read a file of this machine."""

    def read(offset: int) -> Piece | None:
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                file.seek(offset)
                data = file.read(FILE_PIECE_BYTES)
        except FileNotFoundError:
            return None
        return Piece(identity=f"{state.st_dev}:{state.st_ino}", size=state.st_size, data=data)

    return read
