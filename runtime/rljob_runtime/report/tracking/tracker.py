"""What a tracker is, and what it is told of the run. Called by `tracker_child`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """name: the job's. id: the same for every process that goes on with the run. folder: the run's. step:
    steps that were done before this process. facts: of the run, such as its model."""

    name: str
    id: str
    folder: Path
    step: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """Made from its section of the job and a TrackedRun; may raise whatever it likes."""

    def log(self, step: int, metrics: Mapping[str, float], time: float) -> None:
        """Metrics of a step, finite all of them. time: when they were told, unix seconds."""

    def close(self, status: str) -> None:
        """The run has ended: succeeded, failed or interrupted."""
