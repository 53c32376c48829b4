"""The directory of a run, here and on remote storage, and the checkpoint that it resumes from.

`launch` calls it before anything is started.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.pod_names import RUNS_DIRECTORY, driver_log
from rljob_api.topology.resolved import resolve
from rljob_runtime.errors import CheckpointDamaged, ConfigError
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import ProgressEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.remote import EVENTS_NAME, RemoteRun, open_remote
from rljob_runtime.run.run_inputs import changed_inputs, check_inputs, inputs_of
from rljob_runtime.run.run_lock import LOCK_NAME, RunLock
from rljob_runtime.run.run_request import RunRequest

SPEC_NAME = "rljob.yaml"
ATTEMPT_WAIT_SECONDS = 120.0
"""How long the next attempt of a job waits for a lost machine's lock: NFS ends it after 90 s."""
DRIVER_WAIT_SECONDS = 30.0
"""How long a driver that takes over waits for the lock of one that was killed on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The directory of a run. folder: its path on this machine. lock: this process's lock of the folder, to
    be released at the end. remote: its copies, None without. resumes: the run continues what is there.
    source: step of a remote checkpoint that is newer than the local ones. inputs: digests of the job's files.
    changed: those that differ from what the run started with, and are accepted."""

    folder: Path
    store: CheckpointStore
    lock: RunLock
    remote: RemoteRun | None = None
    resumes: bool = False
    source: int | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    changed: Sequence[str] = ()

    @property
    def step(self) -> int | None:
        """The step that the run resumes from; None if it starts."""
        if not self.resumes:
            return None
        return self.store.last_step() if self.source is None else self.source

    def checkpoint(self, log: EventLog) -> Path | None:
        """Return the checkpoint to resume from, fetched if it is remote. Raises StorageError."""
        if self.remote is not None and self.source is not None:
            message = f"fetching the checkpoint of step {self.source} from {self.remote.uri}"
            log.write(ProgressEvent(message=message))
            return self.remote.fetch_checkpoint(self.source, self.store)
        return self.store.latest() if self.resumes else None

    @contextlib.contextmanager
    def disowning_damaged(self) -> Iterator[None]:
        """Mark the remote copy as damaged if reading the checkpoint in the body fails, so that it is not
        fetched again."""
        try:
            yield
        except CheckpointDamaged:
            if self.remote is not None and self.source is not None:
                self.remote.disown(self.source)
            raise


def prepare_run_directory(request: RunRequest) -> RunDirectory:
    """Create the run's directory and write the resolved spec into it, with the events of a run that only
    remote storage has. Raises ConfigError, FolderInUse, StorageError."""
    job = request.job
    folder = request.output or Path("runs") / job.metadata.name
    remote = _remote(job, folder)
    copied = remote is not None and remote.holds_run()
    has_run = copied or (folder / EVENTS_NAME).exists()
    if request.resume == "yes" and not has_run:
        message = f"{folder} holds no run" + (f", nor does {remote.uri}" if remote else "")
        raise ConfigError(f"--resume: {message}; leave --resume out to start one")
    resumes = has_run and request.resume != "no"
    if not resumes and (free_folder := _free_folder(request, folder)) != folder:
        folder, remote = free_folder, _remote(job, free_folder)
        copied = remote is not None and remote.holds_run()
    if remote is not None and copied and not resumes:
        raise ConfigError(
            f"{remote.uri} holds a run already; add --resume to go on with it, or name another "
            "folder: --output or spec.checkpoint.storage.path"
        )
    folder.mkdir(parents=True, exist_ok=True)
    wait = ATTEMPT_WAIT_SECONDS if request.resume == "if-any" else 0.0
    lock = RunLock(folder, wait_seconds=wait)
    try:
        store = _store(request, folder)
        store.recover()
        source = _newer_remote_step(remote, store) if resumes else None
        older = source is not None or not (folder / EVENTS_NAME).exists()
        if remote is not None and resumes and older:
            remote.fetch_events(folder)
        inputs = inputs_of(resolve(job), request.base_dir)
        changed = changed_inputs(folder / EVENTS_NAME, inputs) if resumes else []
        check_inputs(changed, accepted=request.accept_changes)
        resolved = resolve(job).model_dump(mode="json", by_alias=True, exclude_none=True)
        (folder / SPEC_NAME).write_text(yaml.safe_dump(resolved, sort_keys=False))
    except BaseException:
        lock.release()
        raise
    return RunDirectory(
        folder=folder,
        store=store,
        lock=lock,
        remote=remote,
        resumes=resumes,
        source=source,
        inputs=inputs,
        changed=changed,
    )


def reopen_run_directory(request: RunRequest, folder: Path) -> RunDirectory:
    """Return the directory of a run that continues there, with workers that may be writing into it. Raises
    ConfigError, FolderInUse."""
    return RunDirectory(
        folder=folder,
        store=_store(request, folder),
        lock=RunLock(folder, wait_seconds=DRIVER_WAIT_SECONDS),
        remote=_remote(request.job, folder),
    )


def _store(request: RunRequest, folder: Path) -> CheckpointStore:
    return CheckpointStore(folder=folder / "checkpoints", keep=request.job.spec.checkpoint.keep)


def _newer_remote_step(remote: RemoteRun | None, store: CheckpointStore) -> int | None:
    """Return the newest remote step if it is newer than all local ones."""
    steps = remote.steps() if remote is not None else []
    last = store.last_step()
    return steps[-1] if steps and (last is None or steps[-1] > last) else None


def _free_folder(request: RunRequest, folder: Path) -> Path:
    """Return a folder without a run. Raises ConfigError if the requested one has a run."""
    others = sorted(filter(_is_no_spec, folder.iterdir())) if folder.exists() else []
    if not others:
        return folder
    if request.output and not (folder / EVENTS_NAME).exists():
        raise ConfigError(
            f"--output {folder}: the folder holds no run, and has {others[0].name}; name a new or an empty "
            "folder"
        )
    if request.output:
        raise ConfigError(
            f"--output {folder}: the folder holds a run already; add --resume to go on with "
            "it, or name another folder"
        )
    return folder.with_name(f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}")


def _is_no_spec(path: Path) -> bool:
    """Return whether the file is written after a run's first event: not its spec, its lock or a driver's
    output."""
    return path.name not in (SPEC_NAME, LOCK_NAME) and not path.match(driver_log("*"))


def _remote(job: RLJob, folder: Path) -> RemoteRun | None:
    """Return the run's folder on remote storage: the job's path, else the name of the local folder."""
    storage = job.spec.checkpoint.storage
    if storage is None or storage.remote is None:
        return None
    is_below_runs = folder.is_relative_to(RUNS_DIRECTORY)
    name = folder.relative_to(RUNS_DIRECTORY).as_posix() if is_below_runs else folder.resolve().name
    return open_remote(storage.remote, storage.path or name)
