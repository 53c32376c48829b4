"""Claims that wait at a controller, and which states each of them waits for.

A claim may wait for one state after another: for generate while its rows lack responses, then for
reward. The time is told apart before each change, while what has kept the claim is still to be seen.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.dock.controller.claims import ClaimRequest
from rljob_runtime.dock.wire.peer import Reply

LOOK_SECONDS = 0.05
"""Changes that follow sooner are not looked at one by one: their time counts as before them."""


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A parked claim. keeps: says which state keeps it now. since: up to then its time is counted."""

    request: ClaimRequest
    answer: asyncio.Future[Reply]
    keeps: Callable[[], str]
    since: float
    seconds: dict[str, float] = field(default_factory=dict)
    _last: str = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.keeps()

    def tell_apart(self, now: float) -> None:
        """Before a change: what the time since the last one went to."""
        if now - self.since >= LOOK_SECONDS:
            self._last = self.keeps()
            self._count(now)

    def waited(self, now: float) -> dict[str, float]:
        """After the last change: seconds by state."""
        self._count(now)
        return self.seconds

    def _count(self, now: float) -> None:
        self.seconds[self._last] = self.seconds.get(self._last, 0.0) + now - self.since
        self.since = now
