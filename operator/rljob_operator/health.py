"""Endpoints for kubelet and Prometheus: /healthz, /readyz, /metrics.

`main` serves the application and chooses the checks. The answer names a check that fails.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from rljob_operator.watch.informers import WATCH_SECONDS

LAG_LIMIT_SECONDS = 5.0
WATCH_LIMIT_SECONDS = 2 * WATCH_SECONDS
KEY_LIMIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Age:
    """An age in seconds and its limit; owner: what has this age, if that helps."""

    name: str
    seconds: float
    limit: float
    owner: str = ""

    def __str__(self) -> str:
        verdict = "ok" if self.is_fine() else "FAILED"
        suffix = f" ({self.owner})" if self.owner else ""
        return f"{verdict} {self.name}{suffix}: {self.seconds:.1f} s, limit {self.limit:.0f} s"

    def is_fine(self) -> bool:
        """Return whether the age is within its limit."""
        return self.seconds <= self.limit


class LoopLag:
    """Delay of the event loop: a blocking call anywhere in the process increases it."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        beat_seconds: float = 1.0,
        remember_beats: int = 30,
    ) -> None:
        self._clock, self._sleep, self._beat = clock, sleep, beat_seconds
        self._remember = remember_beats
        self._expected: float | None = None
        self._lags: list[float] = []

    async def run(self) -> None:
        """Measure the lag until the task is cancelled."""
        while True:
            self._expected = self._clock() + self._beat
            await self._sleep(self._beat)
            self._lags = [*self._lags, self._clock() - self._expected][-self._remember :]

    def seconds(self) -> float:
        """Return the shortest lag of the last beats, or the delay of the current beat if that is longer.

        The shortest is used because one late beat is a hiccup: only a loop that stays late should be killed.
        """
        overdue = 0.0 if self._expected is None else self._clock() - self._expected
        return max(0.0, overdue, min(self._lags, default=0.0))


class Watches(Protocol):
    """The methods of `WatchAges` that health checks call."""

    def oldest(self) -> tuple[str, float]:
        """Return the kind whose watch has been silent longest, and for how many seconds."""
        ...


class Keys(Protocol):
    """The methods of `KeyedQueue` that health checks call."""

    def oldest_age(self) -> float:
        """Return for how many seconds the queue's oldest key has waited or been worked on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Sources of the answers. is_leader, caches_filled: called at each request."""

    lag: LoopLag
    watches: Watches
    queue: Keys
    is_leader: Callable[[], bool]
    caches_filled: Callable[[], bool]

    def ages(self) -> Sequence[Age]:
        """Return the ages that must not grow old for the process to be kept alive."""
        kind, silent = self.watches.oldest()
        return (
            Age("event loop lag", self.lag.seconds(), LAG_LIMIT_SECONDS),
            Age("last sign of life of a watch", silent, WATCH_LIMIT_SECONDS, kind),
            Age("oldest job in the queue", self.queue.oldest_age(), KEY_LIMIT_SECONDS),
        )

    def readiness(self) -> tuple[bool, str]:
        """Return whether this replica fulfils its role: lead with filled caches, or stand by."""
        if not self.is_leader():
            return True, "ok standby"
        if not self.caches_filled():
            return False, "FAILED leader: caches are not filled yet"
        return True, "ok leader, caches filled"


def application(health: Health, registry: CollectorRegistry) -> web.Application:
    """Return the application with the three paths."""

    async def healthz(_: web.Request) -> web.Response:
        ages = health.ages()
        status = 200 if all(age.is_fine() for age in ages) else 503
        return web.Response(status=status, text="\n".join(map(str, ages)) + "\n")

    async def readyz(_: web.Request) -> web.Response:
        is_ready, text = health.readiness()
        return web.Response(status=200 if is_ready else 503, text=text + "\n")

    async def metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        return web.Response(body=generate_latest(registry), headers=headers)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app
