"""Folders that processes of other pods need: the initial model and checkpoints.

With shared storage a folder is its path. Otherwise its files are sent in chunks through Ray's object store,
which spills to disk what does not fit.
"""

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.children.owned_folders import OwnedFolder
from rljob_runtime.errors import DeadlineError

CHUNK_BYTES = 8 * 2**20
FETCH_SECONDS = 1800.0
"""Default timeout for fetching a complete folder: as long as a copy to remote storage may take."""


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A chunk of a file. name: path relative to the folder. data: reference to the bytes in Ray's store."""

    name: str
    data: Any


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that any process of the run can use. chunks: its files; empty if all pods can read `path`."""

    path: Path
    chunks: tuple[FileChunk, ...] = ()

    def local_path(self) -> Path:
        """Return the local path of the files, which are fetched once per process."""
        return _fetch_once(self).path if self.chunks else self.path

    def copy_to(self, target: Path, *, seconds: float = FETCH_SECONDS) -> None:
        """Write the received files into `target`. Raises DeadlineError if they do not arrive in time."""
        deadline = time.monotonic() + seconds
        for chunk in self.chunks:
            file = target / chunk.name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("ab") as end:
                end.write(self._fetch(chunk, deadline, seconds))

    def _fetch(self, chunk: FileChunk, deadline: float, seconds: float) -> Any:
        import ray

        try:
            return ray.get(chunk.data, timeout=max(deadline - time.monotonic(), 0.0))
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(
                f"{chunk.name} of {self.path} did not come from its pod within {seconds:g} s: Ray holds it "
                "on a node that is gone or not reached",
                stage="files",
            ) from error


def folder_for_all(path: Path, *, shared: bool) -> Folder:
    """Return the folder in a form that all processes can use. shared: all pods of the run see `path`."""
    return Folder(path) if shared else Folder(path, tuple(_chunks(path)))


@functools.lru_cache(maxsize=4)
def _fetch_once(folder: Folder) -> OwnedFolder:
    local = OwnedFolder("folder")
    folder.copy_to(local.path)
    return local


def _chunks(path: Path) -> Iterator[FileChunk]:
    import ray

    for file in sorted(path.rglob("*")):
        if file.is_file():
            name = str(file.relative_to(path))
            with file.open("rb") as content:
                yield FileChunk(name, ray.put(content.read(CHUNK_BYTES)))
                while data := content.read(CHUNK_BYTES):
                    yield FileChunk(name, ray.put(data))
