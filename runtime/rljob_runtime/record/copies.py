"""Copies of a run's checkpoints on remote storage, made in the background one at a time.

A subscriber of the event log, created by `launch`. A thread copies; the driver's thread writes the results as
events with the next step. Training never waits for a copy, but the end of the run does.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rljob_runtime.errors import StorageError
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import (
    CheckpointEvent,
    CopiedEvent,
    Event,
    ProgressEvent,
    StepEvent,
    WarningEvent,
)
from rljob_runtime.record.events import EventLog, rolled_back_to
from rljob_runtime.record.remote import RemoteRun


class Copies:
    """Copies checkpoints to remote storage in a background thread.

    A failed copy is a warning, and the next checkpoint is the next attempt. A checkpoint that arrives during
    a copy waits; a newer one replaces it.
    """

    def __init__(self, remote: RemoteRun, *, store: CheckpointStore, log: EventLog) -> None:
        self._remote, self._store, self._log = remote, store, log
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting: int | None = None
        self._newest: int | None = None
        self._error = ""
        self._results: deque[CopiedEvent | WarningEvent] = deque()
        self._started = False

    def start(self) -> None:
        """Check that the remote folder is writable, and copy the missing checkpoint. Raises StorageError."""
        self._remote.put_records(self._run_folder)
        self._started = True
        self._log.subscribe(self.on_event)
        steps = self._remote.steps()
        self._newest = steps[-1] if steps else None
        last = self._store.last_step()
        if last is not None and last != self._newest:
            self._offer(last)

    def on_event(self, event: Event) -> None:
        """Queue a new checkpoint, and write the results of earlier copies."""
        if isinstance(event, CheckpointEvent):
            self._offer(event.step)
        elif (back := rolled_back_to(event)) is not None:  # drops newer remote copies, too
            self._offer(back)
        if isinstance(event, CheckpointEvent | StepEvent):
            self._write_results()

    def finish(self) -> str:
        """Wait until the last checkpoint is copied, with one more attempt; otherwise return what is
        missing."""
        last = self._store.last_step()
        if not self._started or last is None:
            return ""
        if self._newest != last:
            message = f"copying the checkpoint of step {last} to {self._remote.uri}"
            self._log.write(ProgressEvent(message=message))
        deadline_s = time.monotonic() + self._remote.seconds
        self._join(deadline_s)
        if self._newest != last and time.monotonic() < deadline_s:
            self._offer(last)
            self._join(deadline_s)
        self._write_results()
        self._store.drop_old()
        if self._newest == last:
            return ""
        late = f"its copy did not end within {self._remote.seconds:g} s"
        reason = late if self._thread is not None else self._error
        return (
            f"the checkpoint of step {last} is not on remote storage: {reason}; it lies at "
            f"{self._store.path(last)}, and resuming there copies it"
        )

    @property
    def _run_folder(self) -> Path:
        return self._store.folder.parent

    def _offer(self, step: int) -> None:
        with self._lock:
            if self._waiting is not None:
                self._store.pinned.discard(self._waiting)
            self._waiting = step
            self._store.pinned.add(step)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="copies", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while (step := self._take()) is not None:
            self._copy(step)
            self._store.pinned.discard(step)

    def _take(self) -> int | None:
        with self._lock:
            step, self._waiting = self._waiting, None
            if step is None:
                self._thread = None
            return step

    def _copy(self, step: int) -> None:
        started = time.time()

        def put() -> None:
            self._remote.drop_after(step)
            size = self._remote.put_checkpoint(step, self._store.path(step))
            self._newest = step
            uri = f"{self._remote.uri}/checkpoints/{self._store.path(step).name}"
            seconds = time.time() - started
            self._results.append(CopiedEvent(step=step, uri=uri, bytes=size, seconds=seconds))

        def tidy() -> None:
            self._remote.put_records(self._run_folder)
            self._remote.keep(self._store.keep, also=self._store.best)

        if self._attempt(put, step=step):
            self._attempt(tidy, step=step)

    def _attempt(self, action: Callable[[], None], *, step: int) -> bool:
        try:
            action()
        except StorageError as error:
            self._error = str(error)
            self._results.append(WarningEvent(step=step, message=str(error)))
            return False
        return True

    def _write_results(self) -> None:
        while self._results:
            self._log.write(self._results.popleft())

    def _join(self, deadline_s: float) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, deadline_s - time.monotonic()))
