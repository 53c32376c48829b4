"""Follows the events of a growing log on this machine, or in a job's head.

Called by `on_terminal` and `live_document`. A function reads the bytes: `read_file` here, `cluster.events`
there.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.record.event_types import Event
from rljob_runtime.record.events import events_in, garbage_collection_paused

PIECE_BYTES = 16 * 2**20
FILE_PIECE_BYTES = 2**20
"""Chunk size for a file of this machine: events take several times the memory of their lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailChunk:
    """Bytes of a growing file from an offset on.

    identity: changes if another file replaces this one. size: of the complete file.
    """

    identity: str
    size: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """New events since the last read.

    restarted: they come from another log, and earlier events are void. more: further events can be read
    immediately.
    """

    events: list[Event]
    restarted: bool = False
    more: bool = False


Read = Callable[[int], TailChunk | None]
"""Reads a chunk from an offset on; None without a file. Raises RljobError."""


class Follower:
    """Returns each event of a log once.

    An incomplete line waits for its end; lines that are no event are skipped. brief_bytes: size of the log's
    beginning in which phases, docks and samples are skipped.
    """

    def __init__(self, read: Read, *, brief_bytes: float = 0) -> None:
        self._read = read
        self._brief_bytes = brief_bytes
        self._identity: str | None = None
        self._offset = 0
        self._torn = b""

    def news(self) -> News:
        """Read the next chunk of the file.

        A missing file returns no events; a file that shrank or was replaced is read from the beginning.
        """
        restarted = False
        while (chunk := self._read(self._offset)) is not None:
            if self._is_another(chunk):
                restarted = self._identity is not None
                self._identity, self._torn = chunk.identity, b""
                if self._offset:
                    self._offset, self._brief_bytes = 0, 0
                    continue
            self._offset += len(chunk.data)
            more = self._offset < chunk.size and bool(chunk.data)
            return News(events=self._complete_events(chunk.data), restarted=restarted, more=more)
        return News(events=[], restarted=restarted)

    def _is_another(self, chunk: TailChunk) -> bool:
        return chunk.identity != self._identity or chunk.size < self._offset

    def _complete_events(self, data: bytes) -> list[Event]:
        *lines, self._torn = (self._torn + data).split(b"\n")
        with garbage_collection_paused():
            return list(events_in(lines, brief=self._offset < self._brief_bytes))


def read_file(path: Path) -> Read:
    """Return a reader for a file of this machine."""

    def read(offset: int) -> TailChunk | None:
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                file.seek(offset)
                data = file.read(FILE_PIECE_BYTES)
        except FileNotFoundError:
            return None
        return TailChunk(identity=f"{state.st_dev}:{state.st_ino}", size=state.st_size, data=data)

    return read
