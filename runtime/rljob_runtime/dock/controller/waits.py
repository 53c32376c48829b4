"""Claims that wait at a controller, and how long each has waited for which state.

A claim may wait for one state after another: for generate while its rows lack responses, then for reward.
Time is attributed before each change, while the cause of the wait is still visible.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.dock.controller.claims import ClaimRequest
from rljob_runtime.dock.wire.peer import Reply

LOOK_SECONDS = 0.05
"""Changes that follow each other sooner are not attributed one by one; their time counts as before them."""


@dataclass(slots=True, kw_only=True)
class ParkedClaim:
    """A claim that waits for rows.

    awaited_state: returns the state that the claim waits for now. since: the time up to which its waiting is
    attributed.
    """

    request: ClaimRequest
    answer: asyncio.Future[Reply]
    awaited_state: Callable[[], str]
    since: float
    seconds: dict[str, float] = field(default_factory=dict)
    _last: str = field(init=False)

    def __post_init__(self) -> None:
        self._last = self.awaited_state()

    def attribute(self, time_s: float) -> None:
        """Attribute the time since the last change to the awaited state; called before a change."""
        if time_s - self.since >= LOOK_SECONDS:
            self._last = self.awaited_state()
            self._count(time_s)

    def finish(self, time_s: float) -> dict[str, float]:
        """Return the seconds waited by state; called after the last change."""
        self._count(time_s)
        return self.seconds

    def _count(self, time_s: float) -> None:
        self.seconds[self._last] = self.seconds.get(self._last, 0.0) + time_s - self.since
        self.since = time_s
