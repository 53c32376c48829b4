"""A run that is watched: where its events come from, and when none can come any more.

`LocalRun` is a folder of this machine; `watched` has a job's. Used by `on_terminal` and `watched_page`.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_runtime.record.driver_file import killed_driver_pid
from rljob_runtime.record.event_types import RunFinishedEvent, RunStartedEvent
from rljob_runtime.report.display.wording import duration
from rljob_runtime.report.watch.follow import Follower, News, Read, read_file

SILENT_SECONDS = 7200.0
"""A run on this machine that says nothing for so long is not waited for any more."""
EVENTS, SPEC, REPORT = "events.jsonl", "rljob.yaml", "report.html"


@dataclass(slots=True)
class Pulse:
    """What tells whether more is to come. started, last: times of the attempt's first and of the last
    event, unix seconds; 0 without one."""

    started: float = 0.0
    last: float = 0.0
    finished: RunFinishedEvent | None = None

    def add(self, news: News) -> None:
        """Take up what has come."""
        if news.afresh:
            self.started, self.last, self.finished = 0.0, 0.0, None
        for event in news.events:
            self.last = max(self.last, event.time)
            if isinstance(event, RunStartedEvent):
                self.started, self.finished = event.time, None
            elif isinstance(event, RunFinishedEvent):
                self.finished = event


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """over: nothing more will come. text: what people should know of it, or of what is waited for.
    code: exit code of a run that is over and told none."""

    over: bool
    text: str = ""
    code: int = 1


class WatchedRun(Protocol):
    """place: what messages call it. pause_seconds: between two looks."""

    place: str
    pause_seconds: float

    def news(self) -> News:
        """Events since the last call. Raises RljobError where there can be none."""

    def standing(self, pulse: Pulse, now: float) -> Standing:
        """Whether it goes on. now: unix seconds."""

    def spec(self) -> str:
        """The resolved RLJob; "" while it is not known."""

    def report(self) -> str | None:
        """Where its report is, if there is one."""

    def reader(self, name: str) -> Read:
        """How a file is read that the run names in its folder."""


class LocalRun:
    """A run's folder on this machine, which need not be there yet. tail_bytes: what of its log is read with
    all details; see `RunHistory.read`."""

    pause_seconds = 0.25

    def __init__(self, folder: Path, *, tail_bytes: float = math.inf) -> None:
        self.place = str(folder)
        self._folder = folder
        log = folder / EVENTS
        size = log.stat().st_size if log.exists() else 0
        self._follower = Follower(read_file(log), brief_bytes=size - tail_bytes)

    def news(self) -> News:
        return self._follower.news()

    def standing(self, pulse: Pulse, now: float) -> Standing:
        if pulse.finished is not None:
            return Standing(over=True)
        if not pulse.last:
            return Standing(over=False, text=f"waiting for {self._folder / EVENTS}")
        pid = killed_driver_pid(self._folder, since=pulse.started)
        if pid is not None:
            said = f"process {pid}, the run's driver, is gone and wrote no end"
            return Standing(over=True, text=f"{said}; rljob run FILE --resume goes on")
        silent = now - pulse.last
        if silent > SILENT_SECONDS:
            said = f"no event for {duration(silent)}, and nothing here tells whether the run lives"
            return Standing(over=True, text=f"{said}; rljob stacks {self._folder} asks it")
        return Standing(over=False)

    def spec(self) -> str:
        file = self._folder / SPEC
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def report(self) -> str | None:
        path = self._folder / REPORT
        return str(path) if path.exists() else None

    def reader(self, name: str) -> Read:
        return read_file(self._folder / name)
