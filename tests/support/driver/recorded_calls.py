"""What a driver asks of its workers, call by call, whoever carries the calls out."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_runtime.processes.local_workers import LocalWorkers
from rljob_runtime.processes.workers import Call, Worker, Workers
from rljob_runtime.record.folders import Folder
from rljob_runtime.worker.device_role import DeviceRole

Decision = tuple[str, str, tuple[object, ...]]
"""Who is asked, for what, with which arguments."""


@dataclass
class RecordedWorkers:
    """Workers that note what they are asked."""

    inner: Workers
    decisions: list[Decision]
    started: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, kind: type, *arguments: Any, name: str | None = None, **named: Any) -> Worker:
        worker = self.inner.start(kind, *arguments, name=name, **named)
        roles = [each for each in arguments if isinstance(each, DeviceRole)]
        who = f"device-{roles[0].rank}" if roles else name or kind.__name__
        self.decisions.append((who, "start", ()))
        return RecordedWorker(worker, who, self.decisions)

    def end(self, worker: Any) -> None:
        self.decisions.append((worker._who, "end", ()))
        self.inner.end(worker._inner)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        return self.inner.dead([worker._inner for worker in workers])

    def has_reservation(self, worker: Any) -> bool:
        return self.inner.has_reservation(worker._inner)


@dataclass
class RecordedWorker:
    _inner: Worker
    _who: str
    _decisions: list[Decision]

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            self._decisions.append((self._who, name, tuple(map(_shown, arguments))))
            made: Call = getattr(self._inner, name)(*arguments)
            return made

        return call


def _shown(argument: Any) -> object:
    """What is the same in two runs: without addresses and folders."""
    if isinstance(argument, DeviceRole):
        return argument.rank
    if isinstance(argument, Future):
        return "an earlier call"
    if isinstance(argument, Folder | Path):
        return "a folder"
    return argument


@dataclass
class LocalRecorder:
    """In place of `LocalWorkers`: those of the next run are recorded."""

    decisions: list[Decision] = field(default_factory=list)

    @contextlib.contextmanager
    def __call__(self, *, folder: Path) -> Iterator[RecordedWorkers]:
        with LocalWorkers(folder=folder) as workers:
            yield RecordedWorkers(workers, self.decisions)
