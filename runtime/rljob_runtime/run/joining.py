"""Rollout devices on their way into a run: started in the background, watched, given up.

Called by `elastic`. Devices that hold a model together come together. Nothing here waits: a device whose
node is not there yet costs nothing, and one that fails or takes too long is dropped with its world.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_api.topology.elastic import DevicePlace
from rljob_runtime.errors import RljobError, describe
from rljob_runtime.processes.calls import START_DEADLINE_SECONDS, ended_of, results
from rljob_runtime.processes.clock import monotonic
from rljob_runtime.processes.device_pool import DevicePool
from rljob_runtime.processes.device_roles import prepare
from rljob_runtime.processes.placement import Member
from rljob_runtime.processes.workers import Call, Worker
from rljob_runtime.worker.device_role import DeviceRole

NOT_READY = "it was not ready"
"""How the reason of a world that took too long begins."""


@dataclass(slots=True, kw_only=True)
class Joiner:
    """A world of devices that is starting. prepared: the pending calls that load its model. started: when
    its places were first seen to be there. places: where it is, once it is ready."""

    roles: Sequence[DeviceRole]
    workers: Sequence[Worker]
    prepared: Sequence[Call]
    started: float | None = None
    places: Sequence[DevicePlace] = ()

    @classmethod
    def of(cls, members: Sequence[Member]) -> "Joiner":
        """A world of the run that is ready to join again."""
        return cls(
            roles=[member.role for member in members],
            workers=[member.worker for member in members],
            prepared=(),
            places=[member.place for member in members],
        )

    @property
    def name(self) -> str:
        """`rollout device 3`, `rollout devices 3 and 4`."""
        numbers = " and ".join(str(role.rank) for role in self.roles)
        return f"rollout device{'s' if len(self.roles) > 1 else ''} {numbers}"

    @property
    def members(self) -> list[Member]:
        """As devices of the run, once it is ready."""
        assert self.places, "only devices that are ready join"
        return [
            Member(role=role, worker=worker, place=place)
            for role, worker, place in zip(self.roles, self.workers, self.places, strict=True)
        ]


@dataclass(slots=True, kw_only=True)
class Joiners:
    """All of them, by the number of the first device."""

    pool: DevicePool
    clock: Callable[[], float] = monotonic
    coming: dict[int, Joiner] = field(default_factory=dict)

    def start(self, roles: Sequence[DeviceRole]) -> None:
        """Ask for places and let a world of device workers load its model there, whenever that is."""
        workers = [self.pool.hire(role) for role in roles]
        calls = prepare(workers, roles)
        self.coming[roles[0].rank] = Joiner(roles=roles, workers=workers, prepared=calls)

    def look(self) -> list[tuple[int, str]]:
        """See who has become ready; returns who failed, and why."""
        failed = []
        for rank, joiner in self.coming.items():
            if not joiner.places and (reason := self._failure(joiner)):
                failed.append((rank, reason))
        return failed

    def ready(self) -> list[Joiner]:
        """Those that may join, in order."""
        return [self.coming[rank] for rank in sorted(self.coming) if self.coming[rank].places]

    def roles(self) -> list[DeviceRole]:
        """Of all devices that are coming."""
        return [role for joiner in self.coming.values() for role in joiner.roles]

    def _failure(self, joiner: Joiner) -> str:
        """Why a world that is not ready never will be; "" while it may be."""
        done, pending = ended_of(joiner.prepared)
        try:
            places = results(done)
        except RljobError as error:
            return describe(error)
        if not pending:
            joiner.places = places
            return ""
        now = self.clock()
        if joiner.started is None:
            placed = all(self.pool.has_place(role.node) for role in joiner.roles)
            joiner.started = now if placed else None
        elif now - joiner.started > START_DEADLINE_SECONDS:
            return f"{NOT_READY} {START_DEADLINE_SECONDS:.0f} s after it had its place"
        return ""
