"""Hands the metrics of steps and evaluations to the job's trackers: a subscriber of the event log.

Made by `launch`. A thread a tracker speaks with its process, so that training waits for none of them. One
that fails is a warning, once, and is tried again; the run's end waits for it until its deadline, and tells
how much it lacks.
"""

import hashlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_api.spec.tracking import Tracking
from rljob_runtime.children.line_child import LineChild, StartFailed
from rljob_runtime.record.event_types import (
    EvaluationEvent,
    Event,
    RunStartedEvent,
    StepEvent,
    WarningEvent,
)
from rljob_runtime.record.events import EventLog, events_in, plain
from rljob_runtime.report.tracking.tracker import TrackedRun

CHILD = "rljob_runtime.report.tracking.tracker_child"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 300.0
NO_FACTS = ("inputs", "time", "kind", "machine", "versions", "resumed_from")
MOST_WAITING = 10_000
"""Steps and evaluations that a tracker may be behind; later ones are dropped."""
OF_EVALUATIONS = ("accuracy", "stderr", "reward", "pass_at_k")


class Trackers:
    """All trackers of a run. on_event is called by the driver's process; it never waits."""

    def __init__(self, spec: Tracking, run: TrackedRun, log: EventLog) -> None:
        self._log, self._seconds = log, spec.timeout_seconds
        self._feeds = [_Feed(name, spec, run) for name in spec.named()]

    def on_event(self, event: Event) -> None:
        """Take up a step or an evaluation, and tell what has become of earlier ones."""
        if isinstance(event, StepEvent | EvaluationEvent) and (metrics := metrics_of(event)):
            for feed in self._feeds:
                feed.put({"step": event.step, "time": event.time, "metrics": metrics})
            self._tell()

    def finish(self, status: str) -> None:
        """Wait until the trackers have everything, for their deadline at most. status: of the run."""
        end = time.monotonic() + self._seconds
        for feed in self._feeds:
            feed.finish({"status": status}, end)
        for feed in self._feeds:
            feed.join(end)
        self._tell()

    def _tell(self) -> None:
        for feed in self._feeds:
            if (news := feed.news()) is not None:
                self._log.write(WarningEvent(message=news))


class _Feed:
    """One tracker's messages, their thread and process."""

    def __init__(self, name: str, spec: Tracking, run: TrackedRun) -> None:
        self._name, self._seconds = name, spec.timeout_seconds
        told = {**asdict(run), "folder": str(run.folder.absolute())}
        config = {"tracker": name, "tracking": spec.model_dump_json(by_alias=True), "run": told}
        self._config = json.dumps(config)
        self._child: LineChild | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._end: float | None = None
        self._changed = threading.Condition()
        self._error, self._warned = "", False
        self._dropped = self._lost = 0
        self._thread = threading.Thread(target=self._work, name=f"tracking-{name}", daemon=True)
        self._thread.start()

    def put(self, message: dict[str, Any]) -> None:
        """Another message; it waits for those before it, and is dropped where too many do."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
                return
            self._waiting.append(message)
            self._changed.notify()

    def finish(self, message: dict[str, Any], end: float) -> None:
        """The last message; what is not told at `end` (monotonic seconds) never is."""
        with self._changed:
            if self._warned:  # the end has its own warning
                self._error, self._warned = "", False
            self._waiting.append(message)
            self._end = end
            self._changed.notify()

    def join(self, end: float) -> None:
        """Wait until all is told or given up."""
        self._thread.join(max(0.0, end - time.monotonic()))
        with self._changed:
            left = sum("metrics" in message for message in self._waiting)
        self._lost = left + self._dropped
        if left:
            self._error = self._error or f"not all was told within {self._seconds:g} s of the end"
        elif self._dropped:
            self._error = self._error or f"more than {MOST_WAITING} waited for it"

    def news(self) -> str | None:
        """What the user is told of a tracker that fails: once while the run goes on, once at its end."""
        if self._warned or not self._error:
            return None
        self._warned = True
        where = "the run goes on, and the metrics are in its events"
        if self._lost:
            where = f"it lacks {self._lost} steps and evaluations, which the run's events have"
        return f"tracking by {self._name}: {self._error}; {where} (docs/tracking.md)"

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while (message := self._next()) is not None:
            error = self._tried(message)
            if not error:
                with self._changed:
                    self._waiting.popleft()
                pause = FIRST_PAUSE_SECONDS
                continue
            self._error = self._error or error
            if not self._may_try_again(pause):
                break
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if self._child is not None:
            self._child.kill()

    def _next(self) -> dict[str, Any] | None:
        """The oldest message; None once the last one is told."""
        with self._changed:
            while not self._waiting:
                if self._end is not None:
                    return None
                self._changed.wait()
            return self._waiting[0]

    def _tried(self, message: dict[str, Any]) -> str:
        """Why the tracker did not take it; empty when it did."""
        try:
            if self._child is None:
                seconds = self._left()
                self._child = LineChild(CHILD, self._config, start_seconds=seconds)
            self._child.send(message)
            error = str(self._child.answer(self._left()).get("error", ""))
        except (StartFailed, OSError) as failed:
            self._child, error = None, str(failed)
        return error

    def _left(self) -> float:
        """Seconds that the next answer may take."""
        if self._end is None:
            return self._seconds
        return max(0.0, min(self._seconds, self._end - time.monotonic()))

    def _may_try_again(self, pause: float) -> bool:
        """Wait, but not once the run has ended: then what failed has had its try."""
        with self._changed:
            if self._end is None:
                self._changed.wait_for(lambda: self._end is not None, pause)
                return True
            return False


def metrics_of(event: StepEvent | EvaluationEvent) -> dict[str, float]:
    """What trackers are told of an event, by the events' names."""
    if isinstance(event, StepEvent):
        phases = {f"phases/{name}": value for name, value in event.phases.items()}
        return _finite({**event.metrics, "seconds": event.seconds, **phases})
    suites = {f"{name}/": figures for name, figures in (event.suites or {}).items()}
    return _finite(
        {
            f"evaluation/{suite}{name}": getattr(figures, name)
            for suite, figures in {"": event, **suites}.items()
            for name in OF_EVALUATIONS
        }
    )


def tracked_run(events: Path, started: RunStartedEvent) -> TrackedRun:
    """The run as trackers know it. events: the run's, whose first names it for good. started: the last
    `run_started`."""
    with events.open("rb") as lines:
        first: Event = next(events_in(lines), started)
    text = f"{started.name} {first.time}"
    return TrackedRun(
        name=started.name,
        id=hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
        folder=events.parent,
        step=started.resumed_from or 0,
        facts={
            name: v for name, v in plain(started).items() if name not in NO_FACTS and v is not None
        },
    )


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
