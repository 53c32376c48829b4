"""A watched run: the source of its events, and when no more can follow.

`LocalRun` is a folder of this machine; `watched` provides a job's run. Used by `on_terminal` and
`watched_page`.
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
"""Time without events after which a run on this machine is considered dead."""
EVENTS, SPEC, REPORT = "events.jsonl", "rljob.yaml", "report.html"


@dataclass(slots=True)
class RunActivity:
    """The events that determine whether more will follow.

    started, last: times of the attempt's first event and of the last event, unix seconds; 0 without one.
    """

    started: float = 0.0
    last: float = 0.0
    finished: RunFinishedEvent | None = None

    def add(self, news: News) -> None:
        """Update the state with new events."""
        if news.restarted:
            self.started, self.last, self.finished = 0.0, 0.0, None
        for event in news.events:
            self.last = max(self.last, event.time)
            if isinstance(event, RunStartedEvent):
                self.started, self.finished = event.time, None
            elif isinstance(event, RunFinishedEvent):
                self.finished = event


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Whether a run continues.

    over: no more events will follow. text: message for users about it, or about what is awaited. code: exit
    code of a run that ended without one.
    """

    over: bool
    text: str = ""
    code: int = 1


class WatchedRun(Protocol):
    """A run that can be watched. label: its name in messages. pause_seconds: between two reads."""

    label: str
    pause_seconds: float

    def news(self) -> News:
        """Return the events since the last call. Raises RljobError if there can be none."""

    def status(self, activity: RunActivity, time_s: float) -> RunStatus:
        """Return whether the run continues. time_s: unix seconds."""

    def spec(self) -> str:
        """Return the resolved RLJob; "" while it is unknown."""

    def report(self) -> str | None:
        """Return the path of its report, if there is one."""

    def reader(self, name: str) -> Read:
        """Return a reader for a file in the run's folder."""


class LocalRun:
    """A run's folder on this machine, which may not exist yet.

    tail_bytes: size of the log's end that is read with all details; see `RunHistory.read`.
    """

    pause_seconds = 0.25

    def __init__(self, folder: Path, *, tail_bytes: float = math.inf) -> None:
        self.label = str(folder)
        self._folder = folder
        log = folder / EVENTS
        size = log.stat().st_size if log.exists() else 0
        self._follower = Follower(read_file(log), brief_bytes=size - tail_bytes)

    def news(self) -> News:
        """Return the events since the last call."""
        return self._follower.news()

    def status(self, activity: RunActivity, time_s: float) -> RunStatus:
        """Return whether the run continues. time_s: unix seconds."""
        if activity.finished is not None:
            return RunStatus(over=True)
        if not activity.last:
            return RunStatus(over=False, text=f"waiting for {self._folder / EVENTS}")
        pid = killed_driver_pid(self._folder, since=activity.started)
        if pid is not None:
            text = f"process {pid}, the run's driver, is gone and wrote no end"
            return RunStatus(over=True, text=f"{text}; rljob run FILE --resume goes on")
        silent = time_s - activity.last
        if silent > SILENT_SECONDS:
            text = f"no event for {duration(silent)}, and nothing here tells whether the run lives"
            return RunStatus(over=True, text=f"{text}; rljob stacks {self._folder} asks it")
        return RunStatus(over=False)

    def spec(self) -> str:
        """Return the resolved RLJob; "" while it is unknown."""
        file = self._folder / SPEC
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def report(self) -> str | None:
        """Return the path of the report, if there is one."""
        path = self._folder / REPORT
        return str(path) if path.exists() else None

    def reader(self, name: str) -> Read:
        """Return a reader for a file in the run's folder."""
        return read_file(self._folder / name)
