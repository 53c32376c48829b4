"""Rollout devices that are joining a run: started in the background, watched, and given up.

`elastic` calls it. Devices that hold a model together join together. Nothing here waits: a device whose node
does not exist yet costs nothing. A device that fails or takes too long is dropped with its world.
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
"""Start of the reason for giving up a world that took too long."""


@dataclass(slots=True, kw_only=True)
class Joiner:
    """A world of devices that is starting. prepared: the pending calls that load its model. started: when its
    nodes were first found to exist. places: where its devices run, once it is ready."""

    roles: Sequence[DeviceRole]
    workers: Sequence[Worker]
    prepared: Sequence[Call]
    started: float | None = None
    places: Sequence[DevicePlace] = ()

    @classmethod
    def of(cls, members: Sequence[Member]) -> "Joiner":
        """Return a world that was in the run and is ready to join again."""
        return cls(
            roles=[member.role for member in members],
            workers=[member.worker for member in members],
            prepared=(),
            places=[member.place for member in members],
        )

    @property
    def name(self) -> str:
        """The name of its devices in a message: `rollout device 3`, `rollout devices 3 and 4`."""
        numbers = " and ".join(str(role.rank) for role in self.roles)
        return f"rollout device{'s' if len(self.roles) > 1 else ''} {numbers}"

    @property
    def members(self) -> list[Member]:
        """Return the joiner's devices as members of the run, once it is ready."""
        assert self.places, "only devices that are ready join"
        return [
            Member(role=role, worker=worker, place=device_place)
            for role, worker, device_place in zip(
                self.roles, self.workers, self.places, strict=True
            )
        ]


@dataclass(slots=True, kw_only=True)
class Joiners:
    """All joining worlds, by the number of their first device."""

    pool: DevicePool
    clock: Callable[[], float] = monotonic
    starting: dict[int, Joiner] = field(default_factory=dict)

    def start(self, roles: Sequence[DeviceRole]) -> None:
        """Request nodes for a world of device workers, which load its model there once the nodes exist."""
        workers = [self.pool.hire(role) for role in roles]
        calls = prepare(workers, roles)
        self.starting[roles[0].rank] = Joiner(roles=roles, workers=workers, prepared=calls)

    def poll(self) -> list[tuple[int, str]]:
        """Check which worlds have become ready. Returns those that failed, and why."""
        failed = []
        for rank, joiner in self.starting.items():
            if not joiner.places and (reason := self._failure(joiner)):
                failed.append((rank, reason))
        return failed

    def ready(self) -> list[Joiner]:
        """Return the worlds that may join, in order."""
        return [self.starting[rank] for rank in sorted(self.starting) if self.starting[rank].places]

    def roles(self) -> list[DeviceRole]:
        """Return the roles of all devices that are joining."""
        return [role for joiner in self.starting.values() for role in joiner.roles]

    def _failure(self, joiner: Joiner) -> str:
        """Return why a world will never be ready; "" if it is or may become ready."""
        done, pending = ended_of(joiner.prepared)
        try:
            places = results(done)
        except RljobError as error:
            return describe(error)
        if not pending:
            joiner.places = places
            return ""
        time_s = self.clock()
        if joiner.started is None:
            placed = all(self.pool.has_place(role.node) for role in joiner.roles)
            joiner.started = time_s if placed else None
        elif time_s - joiner.started > START_DEADLINE_SECONDS:
            return f"{NOT_READY} {START_DEADLINE_SECONDS:.0f} s after it had its place"
        return ""
