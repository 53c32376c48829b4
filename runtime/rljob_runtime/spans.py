"""When a stage ran on a worker: what the timeline of the report is drawn from."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Unix seconds."""

    start: float
    end: float

    @classmethod
    def since(cls, start: float) -> "Span":
        """From `start` until now."""
        return cls(start=start, end=time.time())

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start
