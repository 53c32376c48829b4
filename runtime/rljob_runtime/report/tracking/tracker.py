"""The interface of a tracker, and the run that it records. Called by `tracker_child`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker records.

    name: of the job. id: the same for every process that resumes the run. folder: of the run. step: number of
    steps finished before this process. facts: of the run, such as its model.
    """

    name: str
    id: str
    folder: Path
    step: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """A tracker, created from its section of the job and a TrackedRun. Its methods may raise any error."""

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Record the metrics of a step, all of which are finite. time: of the event, unix seconds."""

    def close(self, status: str) -> None:
        """Record the end of the run: succeeded, failed or interrupted."""
