"""A run's events and the trackers that are told of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.tracking import Tracking
from rljob_runtime.record.event_types import Event, RunStartedEvent, StepEvent, WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.tracking.trackers import Trackers, tracked_run


class TrackedLog:
    """An event log whose steps and evaluations go to trackers. warned: its warnings."""

    def __init__(self, folder: Path, section: dict[str, Any]) -> None:
        self.folder, self._spec = folder, Tracking.model_validate(section, by_alias=True)
        self.log = EventLog(folder / "events.jsonl")
        self.warned: list[str] = []
        self.log.subscribe(self._take)
        self._trackers: Trackers | None = None

    def begin(self, **facts: Any) -> None:
        """The run's process starts."""
        started = RunStartedEvent(**{"name": "small", "steps": 9, "model": "tiny", **facts})
        self.log.write(started)
        self._trackers = Trackers(self._spec, tracked_run(self.log.path, started), self.log)
        self.log.subscribe(self._trackers.on_event)

    def step(self, number: int, **metrics: float | None) -> None:
        """A step is done."""
        told = {name.replace("__", "/"): value for name, value in metrics.items()}
        phases = {"generate": 1.5}
        self.log.write(StepEvent(step=number, seconds=2.0, metrics=told, phases=phases))

    def end(self, status: str = "succeeded") -> None:
        """The run's process ends."""
        assert self._trackers is not None, "it has not begun"
        self._trackers.finish(status)
        self.log.close()

    def _take(self, event: Event) -> None:
        if isinstance(event, WarningEvent):
            self.warned.append(event.message)


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[Callable[..., TrackedLog]]:
    """tracked(tensorboard={}): a log with these trackers, in one folder whoever asks."""
    made: list[TrackedLog] = []

    def make(**section: Any) -> TrackedLog:
        made.append(TrackedLog(tmp_path, section))
        return made[-1]

    yield make
    for each in made:
        each.log.close()
