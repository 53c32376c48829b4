"""A run's folder on remote storage: checkpoints that are complete or absent, and the run's records.

Opened by `run_place`, written by `copies`. Uses fsspec; the package of a protocol is imported when a job
names it. That package reads the credentials from the environment.
"""

import contextlib
import json
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_api.spec.infrastructure import RemoteStorage
from rljob_api.spec.json_text import parse_json
from rljob_runtime.errors import ConfigError, StorageError
from rljob_runtime.record.best import BEST_FILE
from rljob_runtime.record.checkpoint import CheckpointStore, step_of
from rljob_runtime.record.checksums import is_within
from rljob_runtime.record.hang_files import FOLDER as HANGS
from rljob_runtime.record.hang_files import SUMMARY
from rljob_runtime.record.profiles.traces import FOLDER as TRACES

EVENTS_NAME = "events.jsonl"
RECORDS = ("rljob.yaml", EVENTS_NAME, "report.html", f"checkpoints/{BEST_FILE}")
MARKER = "copy.json"
"""Written last into a copied checkpoint, with the size of every file. A copy without it is torn."""
EXTRAS = {"s3": "s3"}
"""Protocols that need a package, and the extra that installs it."""
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60}},
    "file": {"auto_mkdir": True},
}
MOST_FILES = 64
"""Small files that are copied together; the deadline is checked between such batches."""
FRESH = {"use_listings_cache": False, "skip_instance_cache": True}


@dataclass(slots=True)
class Deadline:
    """A callback for fsspec that raises StorageError once `seconds` have passed."""

    seconds: float
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds

    def set_size(self, size: int | None) -> None:
        """Check the deadline before the next file, of this size."""
        self.check()

    def relative_update(self, inc: int = 1) -> None:
        """Check the deadline after this many more bytes."""
        self.check()

    def check(self) -> None:
        """Raise StorageError if the deadline has passed."""
        if time.monotonic() > self._end:
            raise StorageError(
                f"it took longer than {self.seconds:g} s (spec.checkpoint.storage.remote."
                "timeoutSeconds)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRun:
    """The remote folder of one run.

    fs: an fsspec file system. root: the folder's path in `fs`. uri: the folder's URI as users write it.
    seconds: timeout of a method, e.g. of copying a checkpoint. Every method raises StorageError.
    """

    fs: Any
    root: str
    uri: str
    seconds: float

    def holds_run(self) -> bool:
        """Return whether the folder contains a checkpoint or the events of a run."""
        with self._storage_errors("cannot be read") as deadline:
            return bool(self._steps(deadline)) or self.fs.exists(f"{self.root}/{EVENTS_NAME}")

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, in ascending order."""
        with self._storage_errors("cannot be read") as deadline:
            return self._steps(deadline)

    def put_checkpoint(self, step: int, source: Path) -> int:
        """Copy a checkpoint's folder and return its size. Replaces an existing copy of the step."""
        with self._storage_errors(f"cannot take the checkpoint of step {step}") as deadline:
            target = self._folder(step)
            self._remove(target, deadline)
            files = sorted(file for file in source.rglob("*") if file.is_file())
            sizes = {file.relative_to(source).as_posix(): file.stat().st_size for file in files}
            for name in sizes:
                deadline.check()
                self.fs.put_file(str(source / name), f"{target}/{name}", callback=deadline)
            deadline.check()
            self.fs.pipe_file(f"{target}/{MARKER}", json.dumps(sizes, indent=1).encode())
            return sum(sizes.values())

    def fetch_checkpoint(self, step: int, store: CheckpointStore) -> Path:
        """Copy a complete checkpoint into the store and return its path."""
        with self._storage_errors(f"cannot give the checkpoint of step {step}") as deadline:
            draft = store.begin(step)
            for name, size in self._read_marker(step).items():
                deadline.check()
                if not is_within(name):
                    raise StorageError(
                        f"{MARKER} names {name!r}, which is no file of the checkpoint"
                    )
                file = draft / name
                file.parent.mkdir(parents=True, exist_ok=True)
                self.fs.get_file(f"{self._folder(step)}/{name}", str(file), callback=deadline)
                if file.stat().st_size != size:
                    raise StorageError(f"{name} came with {file.stat().st_size} of {size} bytes")
            return store.publish(step)

    def disown(self, step: int) -> None:
        """Mark a checkpoint as torn. Its files remain until it is dropped or replaced."""
        with self._storage_errors(f"cannot disown the checkpoint of step {step}") as deadline:
            deadline.check()
            self.fs.rm(f"{self._folder(step)}/{MARKER}")

    def keep(self, number: int, *, also: Collection[int] = ()) -> None:
        """Drop all checkpoints except the newest complete ones and those of the steps in `also`."""
        with self._storage_errors("cannot drop old checkpoints") as deadline:
            retained_steps = {*self._steps(deadline)[-number:], *also}
            for step in self._sizes():
                if step not in retained_steps:
                    self._remove(self._folder(step), deadline)

    def drop_after(self, step: int) -> None:
        """Drop the checkpoints of later steps, which a rollback has undone."""
        with self._storage_errors("cannot drop checkpoints that were rolled back") as deadline:
            for later in [copied for copied in self._sizes() if copied > step]:
                self._remove(self._folder(later), deadline)

    def put_records(self, folder: Path) -> None:
        """Copy the run's spec, events, report, stacks and traces, as far as they exist."""
        deadline = Deadline(self.seconds)
        for name in RECORDS:
            if (folder / name).is_file():
                with self._storage_errors(f"cannot take {name}", deadline):
                    self._put(folder / name, name, deadline)
        self._put_hangs(folder, deadline)
        self._put_traces(folder, deadline)

    def put_hangs(self, folder: Path) -> None:
        """Copy the stacks of all hangs that are not copied yet, the newest first."""
        self._put_hangs(folder, Deadline(self.seconds))

    def put_hang(self, folder: Path) -> None:
        """Copy the stacks of one hang unless they are copied already."""
        self._put_hang(folder, Deadline(self.seconds))

    def _put_hangs(self, folder: Path, deadline: Deadline) -> None:
        for summary in sorted((folder / HANGS).glob(f"*/{SUMMARY}"), reverse=True):
            self._put_hang(summary.parent, deadline)

    def _put_hang(self, folder: Path, deadline: Deadline) -> None:
        """Copy many files per request if the file system supports it. The summary comes last."""
        name = f"{HANGS}/{folder.name}"
        with self._storage_errors(f"cannot take {name}", deadline):
            target = f"{self.root}/{name}"
            deadline.check()
            if self.fs.exists(f"{target}/{SUMMARY}"):
                return
            names = sorted(file.name for file in folder.iterdir() if file.name != SUMMARY)
            for start in range(0, len(names), MOST_FILES):
                batch = names[start : start + MOST_FILES]
                deadline.check()
                self.fs.put([str(folder / n) for n in batch], [f"{target}/{n}" for n in batch])
            self._put(folder / SUMMARY, f"{name}/{SUMMARY}", deadline)

    def _put(self, file: Path, name: str, deadline: Deadline) -> None:
        deadline.check()
        self.fs.put_file(str(file), f"{self.root}/{name}", callback=deadline)

    def _put_traces(self, folder: Path, deadline: Deadline) -> None:
        """Copy the traces that are missing or have another size."""
        files = sorted((folder / TRACES).glob("step-*/*.gz"))
        if not files:
            return
        with self._storage_errors(f"cannot take {TRACES}", deadline):
            remote_files = self.fs.find(f"{self.root}/{TRACES}", detail=True)
            sizes = {path: info["size"] for path, info in remote_files.items()}
            for file in files:
                name = file.relative_to(folder).as_posix()
                if sizes.get(f"{self.root}/{name}") != file.stat().st_size:
                    self._put(file, name, deadline)

    def fetch_events(self, folder: Path) -> None:
        """Replace the folder's events by the remote ones, if there are any."""
        with self._storage_errors(f"cannot give {EVENTS_NAME}") as deadline:
            if self.fs.exists(f"{self.root}/{EVENTS_NAME}"):
                deadline.check()
                draft = folder / f".{EVENTS_NAME}"
                self.fs.get_file(f"{self.root}/{EVENTS_NAME}", str(draft), callback=deadline)
                draft.replace(folder / EVENTS_NAME)

    def _steps(self, deadline: Deadline) -> list[int]:
        complete = []
        for step, sizes in sorted(self._sizes().items()):
            deadline.check()
            if self._is_complete(step, sizes):
                complete.append(step)
        return complete

    def _folder(self, step: int) -> str:
        return f"{self.root}/checkpoints/step-{step:06d}"

    def _sizes(self) -> dict[int, dict[str, int]]:
        """Sizes of the existing files by step, whether the checkpoint is complete or not."""
        sizes_by_step: dict[int, dict[str, int]] = {}
        above = f"{self.root}/checkpoints/"
        for path, info in self.fs.find(above.rstrip("/"), detail=True).items():
            folder, _, name = path.removeprefix(above).partition("/")
            step = step_of(folder)
            if step is not None and name:
                sizes_by_step.setdefault(step, {})[name] = info["size"]
        return sizes_by_step

    def _is_complete(self, step: int, sizes: dict[str, int]) -> bool:
        if MARKER not in sizes:
            return False
        try:
            marked = self._read_marker(step)
        except (ValueError, TypeError):
            return False  # a torn marker counts as missing
        all_within = all(map(is_within, marked))
        return all_within and marked == {n: size for n, size in sizes.items() if n != MARKER}

    def _read_marker(self, step: int) -> dict[str, int]:
        return dict(parse_json(self.fs.cat_file(f"{self._folder(step)}/{MARKER}")))

    def _remove(self, folder: str, deadline: Deadline) -> None:
        deadline.check()
        if self.fs.find(folder):
            deadline.check()
            self.fs.rm(folder, recursive=True)

    @contextlib.contextmanager
    def _storage_errors(self, failure: str, deadline: Deadline | None = None) -> Iterator[Deadline]:
        """Convert the errors of all protocols to StorageError.

        deadline: of the enclosing operation; without one, a new deadline is started.
        """
        try:
            yield deadline or Deadline(self.seconds)
        except StorageError as error:
            if str(error).startswith(self.uri):
                raise
            raise StorageError(f"{self.uri} {failure}: {error}") from error
        except Exception as error:
            raise StorageError(f"{self.uri} {failure}: {type(error).__name__}: {error}") from error


def open_remote(remote: RemoteStorage, path: str) -> RemoteRun:
    """Open the run's folder `path` within the job's URI, without reading or writing anything.

    Raises ConfigError if a package is missing.
    """
    import fsspec

    uri = f"{remote.uri}/{path}"
    protocol = remote.uri.split(":")[0]
    options = FRESH | OPTIONS.get(protocol, {})
    if remote.endpoint:
        options["endpoint_url"] = remote.endpoint
    try:
        fs, root = fsspec.url_to_fs(uri, **options)
    except ImportError as error:
        raise ConfigError(
            f"spec.checkpoint.storage.remote.uri is {remote.uri}, which needs a package that is not "
            f"installed ({error}); install rljob[{EXTRAS.get(protocol, protocol)}]"
        ) from error
    return RemoteRun(fs=fs, root=root.rstrip("/"), uri=uri, seconds=remote.timeout_seconds)
