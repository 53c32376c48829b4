"""Folders that processes of other pods need: the model that a run starts from, and checkpoints.

Where the pods share storage a folder is its path. Where they do not, its files travel in pieces through
Ray's object store; the store spills to disk what it cannot hold.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.errors import DeadlineError

PIECE_BYTES = 8 * 2**20
FETCH_SECONDS = 1800.0
"""Of a whole folder, where nobody says less: as long as a copy to remote storage may take."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file. name: relative to the folder. data: a reference to its bytes."""

    name: str
    data: Any


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder for any process of the run. pieces: its files; empty where all pods see `path`."""

    path: Path
    pieces: tuple[Piece, ...] = ()

    def here(self) -> Path:
        """Where this process finds the files; fetched once."""
        return _fetched(self).path if self.pieces else self.path

    def copy_to(self, target: Path, *, seconds: float = FETCH_SECONDS) -> None:
        """Write the files that travelled into `target`. Raises DeadlineError when not all came in time."""
        deadline = time.monotonic() + seconds
        for piece in self.pieces:
            file = target / piece.name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as end:
                end.write(self._fetch(piece, deadline, seconds))

    def _fetch(self, piece: Piece, deadline: float, seconds: float) -> Any:
        import ray

        try:
            return ray.get(piece.data, timeout=max(deadline - time.monotonic(), 0.0))
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(
                f"{piece.name} of {self.path} did not come from its pod within {seconds:g} s: Ray holds it "
                "on a node that is gone or not reached",
                stage="files",
            ) from error


def folder_for_all(path: Path, *, shared: bool) -> Folder:
    """The folder as processes anywhere can use it. shared: all pods of the run see `path`."""
    return Folder(path) if shared else Folder(path, tuple(_pieces(path)))


@functools.lru_cache(maxsize=4)
def _fetched(folder: Folder) -> OwnedFolder:
    owned = OwnedFolder("folder")
    folder.copy_to(owned.path)
    return owned


def _pieces(path: Path) -> Iterator[Piece]:
    import ray

    for file in sorted(path.rglob("*")):
        if file.is_file():
            name = str(file.relative_to(path))
            with file.open("rb") as content:
                yield Piece(name, ray.put(content.read(PIECE_BYTES)))
                while data := content.read(PIECE_BYTES):
                    yield Piece(name, ray.put(data))
