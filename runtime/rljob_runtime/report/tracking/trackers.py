"""Sends the metrics of steps and evaluations to the job's trackers: a subscriber of the event log.

Created by `launch`. One thread per tracker communicates with its process, so training never waits. A failing
tracker causes one warning and is retried. The run's end waits for it until its deadline and reports what it
lacks.
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
"""Largest number of queued steps and evaluations of a tracker; later ones are dropped."""
OF_EVALUATIONS = ("accuracy", "stderr", "reward", "pass_at_k")


class Trackers:
    """All trackers of a run. The driver's process calls on_event, which never waits."""

    def __init__(self, spec: Tracking, run: TrackedRun, log: EventLog) -> None:
        self._log, self._seconds = log, spec.timeout_seconds
        self._feeds = [_Feed(name, spec, run) for name in spec.named()]

    def on_event(self, event: Event) -> None:
        """Queue a step or an evaluation, and write the warnings of failed trackers."""
        if isinstance(event, StepEvent | EvaluationEvent) and (metrics := metrics_of(event)):
            for feed in self._feeds:
                feed.put({"step": event.step, "time": event.time, "metrics": metrics})
            self._write_warnings()

    def finish(self, status: str) -> None:
        """Wait until the trackers have received everything, at most until their deadline. status: of the
        run."""
        deadline_s = time.monotonic() + self._seconds
        for feed in self._feeds:
            feed.finish({"status": status}, deadline_s)
        for feed in self._feeds:
            feed.join(deadline_s)
        self._write_warnings()

    def _write_warnings(self) -> None:
        for feed in self._feeds:
            if (warning := feed.warning()) is not None:
                self._log.write(WarningEvent(message=warning))


class _Feed:
    """The message queue, thread and process of one tracker."""

    def __init__(self, name: str, spec: Tracking, run: TrackedRun) -> None:
        self._name, self._seconds = name, spec.timeout_seconds
        run_fields = {**asdict(run), "folder": str(run.folder.absolute())}
        config = {
            "tracker": name,
            "tracking": spec.model_dump_json(by_alias=True),
            "run": run_fields,
        }
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
        """Queue a message; it is dropped if too many are waiting."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
                return
            self._waiting.append(message)
            self._changed.notify()

    def finish(self, message: dict[str, Any], deadline_s: float) -> None:
        """Queue the last message. Messages that are not sent by `deadline_s` (monotonic seconds) are
        dropped."""
        with self._changed:
            if self._warned:  # the end has its own warning
                self._error, self._warned = "", False
            self._waiting.append(message)
            self._end = deadline_s
            self._changed.notify()

    def join(self, deadline_s: float) -> None:
        """Wait until all messages are sent or dropped."""
        self._thread.join(max(0.0, deadline_s - time.monotonic()))
        with self._changed:
            unsent = sum("metrics" in message for message in self._waiting)
        self._lost = unsent + self._dropped
        if unsent:
            self._error = self._error or f"not all was told within {self._seconds:g} s of the end"
        elif self._dropped:
            self._error = self._error or f"more than {MOST_WAITING} waited for it"

    def warning(self) -> str | None:
        """Return the warning about a failed tracker: at most one during the run and one at its end."""
        if self._warned or not self._error:
            return None
        self._warned = True
        consequence = "the run goes on, and the metrics are in its events"
        if self._lost:
            consequence = (
                f"it lacks {self._lost} steps and evaluations, which the run's events have"
            )
        return f"tracking by {self._name}: {self._error}; {consequence} (docs/tracking.md)"

    def _work(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while (message := self._next()) is not None:
            error = self._send(message)
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
        """Return the oldest message, or None once the last one is sent."""
        with self._changed:
            while not self._waiting:
                if self._end is not None:
                    return None
                self._changed.wait()
            return self._waiting[0]

    def _send(self, message: dict[str, Any]) -> str:
        """Send a message to the tracker. Return the error, or "" on success."""
        try:
            if self._child is None:
                seconds = self._timeout_seconds()
                self._child = LineChild(CHILD, self._config, start_seconds=seconds)
            self._child.send(message)
            error = str(self._child.answer(self._timeout_seconds()).get("error", ""))
        except (StartFailed, OSError) as failed:
            self._child, error = None, str(failed)
        return error

    def _timeout_seconds(self) -> float:
        """Seconds until the timeout of the next response."""
        if self._end is None:
            return self._seconds
        return max(0.0, min(self._seconds, self._end - time.monotonic()))

    def _may_try_again(self, pause: float) -> bool:
        """Wait before another attempt. After the run's end there is none."""
        with self._changed:
            if self._end is None:
                self._changed.wait_for(lambda: self._end is not None, pause)
                return True
            return False


def metrics_of(event: StepEvent | EvaluationEvent) -> dict[str, float]:
    """Return the metrics of an event that are sent to trackers, by the names of the event."""
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
    """Build the run for the trackers.

    events: the run's log, whose first event determines the id. started: the last `run_started`.
    """
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
