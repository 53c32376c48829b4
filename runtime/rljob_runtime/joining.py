"""Rollout devices on their way into a run: started in the background, watched, given up.

Called by `elastic`. Nothing here waits: a device whose node is not there yet costs nothing, and one
that fails or takes too long is dropped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ray

from rljob_api.elastic import DevicePlace
from rljob_runtime.actors.device import Seat
from rljob_runtime.calls import START_DEADLINE_SECONDS
from rljob_runtime.device_pool import DevicePool
from rljob_runtime.errors import describe


@dataclass(slots=True, kw_only=True)
class Joiner:
    """A device that is starting. prepared: the pending call that loads its model. started: when its
    place was first seen to be there. place: where it is, once it is ready."""

    seat: Seat
    worker: Any
    prepared: Any
    started: float | None = None
    place: DevicePlace | None = None


@dataclass(slots=True, kw_only=True)
class Joiners:
    """All of them, by number of the device."""

    pool: DevicePool
    clock: Callable[[], float] = time.monotonic
    coming: dict[int, Joiner] = field(default_factory=dict)

    def start(self, seat: Seat) -> None:
        """Ask for a place and let a device worker load its model there, whenever that is."""
        worker = self.pool.hire(seat)
        prepared = worker.prepare.remote(None)
        self.coming[seat.rank] = Joiner(seat=seat, worker=worker, prepared=prepared)

    def look(self) -> list[tuple[int, str]]:
        """See who has become ready; returns who failed, and why."""
        failed = []
        for rank, joiner in self.coming.items():
            if joiner.place is None and (reason := self._failure(joiner)):
                failed.append((rank, reason))
        return failed

    def ready(self) -> list[Joiner]:
        """Those that may join, in order."""
        return [self.coming[rank] for rank in sorted(self.coming) if self.coming[rank].place]

    def _failure(self, joiner: Joiner) -> str:
        """Why a device that is not ready never will be; "" while it may be."""
        done, _ = ray.wait([joiner.prepared], timeout=0)
        if done:
            try:
                joiner.place = ray.get(joiner.prepared)
            except ray.exceptions.RayError as error:
                return describe(error)
            return ""
        now = self.clock()
        if joiner.started is None:
            joiner.started = now if self.pool.has_place(joiner.seat.node) else None
        elif now - joiner.started > START_DEADLINE_SECONDS:
            return f"it was not ready {START_DEADLINE_SECONDS:.0f} s after it had its place"
        return ""
