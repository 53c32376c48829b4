"""The work queue: one pass per key at a time, no key is lost, and failures are retried with growing delays.

Filled by `informers`, `resync` and by passes; its workers call the one function that reconciles a key. It
does not depend on Kubernetes.
"""

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rljob_operator.errors import OperatorError, Temporary
from rljob_operator.log import job_field
from rljob_operator.metrics import PassResult

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

STOP, NEWS, TIMED = range(3)
"""Lanes, in order of priority: changed keys come before keys that are only checked again."""

HEAD_START = 1000
"""Number of changed keys that a new key may overtake."""


class QueueMetrics(Protocol):
    """Receives the queue's reports."""

    def key_added(self) -> None:
        """Count a key that was put into the queue."""
        ...

    def pass_done(self, result: PassResult, seconds: float) -> None:
        """Count one pass over a key, and record how many seconds it took."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds before the n-th retry: doubling from `first` to `limit`, at random ±`jitter`."""

    first: float = 0.2
    limit: float = 60.0
    jitter: float = 0.2

    def seconds(self, failures: int, chance: float) -> float:
        """Return the delay. failures: passes that failed in a row, from 1. chance: from 0 to 1."""
        exact = min(self.limit, self.first * 2.0 ** min(failures - 1, 32))
        return exact * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Clock, sleep and chance, which tests replace. clock: monotonic seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    chance: Callable[[], float] = random.random


class KeyedQueue(Generic[Key]):
    """Keys to work on. A key has at most one worker; a key added during its pass gets one more pass."""

    def __init__(
        self,
        work: Callable[[Key], Awaitable[None]],
        *,
        metrics: QueueMetrics,
        pass_limit: Callable[[], int] | None = None,
        backoff: Backoff | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """Create an empty queue. pass_limit: how many passes may currently run, at least 1; default: as many
        as workers."""
        self._work = work
        self._metrics = metrics
        self._pass_limit = pass_limit
        self._backoff = backoff or Backoff()
        around = surroundings or Surroundings()
        self._clock, self._sleep, self._chance = around.clock, around.sleep, around.chance
        # Lane, order, key; void if the key no longer waits. The key None stops a worker.
        self._ready: asyncio.PriorityQueue[tuple[int, int, Key | None]] = asyncio.PriorityQueue()
        self._waiting: dict[Key, float] = {}  # since when; these get a pass
        self._lanes: dict[Key, int] = {}  # of those that wait
        self._active: dict[Key, float] = {}  # since when; at most one worker has each
        self._due: dict[Key, float] = {}  # the one time that counts for a delayed key
        self._timers: list[tuple[float, int, Key]] = []  # heap; entries that `_due` left are void
        self._order = itertools.count()  # keys themselves need not be comparable
        self._failures: dict[Key, int] = {}
        self._timer_changed = asyncio.Event()
        self._pass_ended = asyncio.Condition()
        self._stopping = asyncio.Event()

    def add(self, key: Key, *, new: bool = False) -> None:
        """Request a pass as soon as a worker is free. Repeated requests before it starts count once.

        new: nothing was done for the key yet, and its first pass starts something slow. It goes before other
        changed keys, but each of them waits for at most `HEAD_START` new ones.
        """
        self._add(key, NEWS, HEAD_START if new else 0)

    def add_after(self, key: Key, seconds: float) -> None:
        """Request a pass after `seconds`; of several requested times, the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        due = self._clock() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._timers, (due, next(self._order), key))
            self._drop_void_timers()
            self._timer_changed.set()

    def _add(self, key: Key, lane: int, head_start: int = 0) -> None:
        if self._lanes.get(key, TIMED + 1) <= lane:
            return
        self._lanes[key] = lane
        if key not in self._waiting:
            self._waiting[key] = self._clock()
            self._metrics.key_added()
        if key not in self._active:
            self._ready.put_nowait((lane, next(self._order) - head_start, key))

    def depth(self) -> int:
        """Return the number of keys that wait for a pass, without delayed ones."""
        return len(self._waiting)

    def oldest_age(self) -> float:
        """Return the seconds for which the oldest key has waited or been worked on; 0 if there is none."""
        since = itertools.chain(self._waiting.values(), self._active.values())
        return max(0.0, self._clock() - min(since, default=float("inf")))

    def longest_running(self) -> float:
        """Return the seconds for which the longest pass has been running; 0 if there is none."""
        monotonic_s = self._clock()
        return max((monotonic_s - since for since in self._active.values()), default=0.0)

    async def run(self, workers: int, *, grace_seconds: float = 20.0) -> None:
        """Work until `stop`; then let running passes end, for at most `grace_seconds`.

        Raises what broke the queue itself; errors of a pass are logged and retried.
        """
        tasks = [asyncio.create_task(self._work_on()) for _ in range(workers)]
        timer = asyncio.create_task(self._release())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({stopped, timer, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for _ in tasks:
                self._ready.put_nowait((STOP, next(self._order), None))  # wakes the idle
            await self._within(grace_seconds, asyncio.gather(*tasks))
        finally:
            for task in (*tasks, timer, stopped):
                task.cancel()
            await asyncio.gather(*tasks, timer, stopped, return_exceptions=True)
        for task in (*tasks, timer):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def stop(self) -> None:
        """Let `run` return once the running passes are done; waiting keys stay undone."""
        self._stopping.set()

    async def _work_on(self) -> None:
        while not self._stopping.is_set():
            _, _, key = await self._ready.get()
            if key is not None:
                await self._room()
            if key is None or self._stopping.is_set():
                return
            if key not in self._waiting or key in self._active:
                continue
            del self._waiting[key], self._lanes[key]
            began = self._active[key] = self._clock()
            try:
                with job_field(str(key)):
                    result = await self._pass(key)
            finally:
                del self._active[key]
                if key in self._waiting:
                    self._ready.put_nowait((self._lanes[key], next(self._order), key))
            self._metrics.pass_done(result, self._clock() - began)
            async with self._pass_ended:
                self._pass_ended.notify_all()

    async def _room(self) -> None:
        """Return once fewer passes run than the limit, or the queue stops."""
        async with self._pass_ended:
            await self._pass_ended.wait_for(
                lambda: (
                    self._stopping.is_set()
                    or self._pass_limit is None
                    or len(self._active) < self._pass_limit()
                )
            )

    async def _pass(self, key: Key) -> PassResult:
        try:
            await self._work(key)
        except Exception as error:
            self._retry(key, error)
            return "retry" if isinstance(error, Temporary) else "error"
        self._failures.pop(key, None)
        return "ok"

    def _retry(self, key: Key, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = self._backoff.seconds(failures, self._chance())
        if isinstance(error, Temporary):
            seconds = max(seconds, error.retry_after)
        if isinstance(error, OperatorError):
            logger.warning("pass failed failures=%d retry_in=%.1fs: %s", failures, seconds, error)
        else:  # a bug: the traceback shows where
            logger.error(
                "pass failed failures=%d retry_in=%.1fs", failures, seconds, exc_info=error
            )
        self.add_after(key, seconds)

    async def _release(self) -> None:
        while True:
            self._timer_changed.clear()
            pause = self._release_due()
            if pause is None:
                await self._timer_changed.wait()
            else:
                await self._within(pause, self._timer_changed.wait())

    def _release_due(self) -> float | None:
        """Add every key whose time has come; return the seconds until the next one, or None without any."""
        monotonic_s = self._clock()
        while self._timers:
            due, _, key = self._timers[0]
            if self._due.get(key) != due:  # an earlier time replaced it
                heapq.heappop(self._timers)
            elif due > monotonic_s:
                return due - monotonic_s
            else:
                heapq.heappop(self._timers)
                del self._due[key]
                self._add(key, TIMED)
        return None

    def _drop_void_timers(self) -> None:
        if len(self._timers) > 2 * len(self._due) + 64:
            self._timers = [entry for entry in self._timers if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._timers)

    async def _within(self, seconds: float, awaitable: Awaitable[object]) -> None:
        first = asyncio.ensure_future(awaitable)
        pause = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({first, pause}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
            pause.cancel()
            await asyncio.gather(first, pause, return_exceptions=True)
