"""Rollout devices join and leave between two steps, while the devices that train stay.

The driver calls `poll` whenever it waits, and `apply` after each step. Requested devices start in the
background and join once they are ready. Devices that are too many finish their share of the step and leave
after it. A device that fails to join is given up, and training continues.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import DeadlineError, RljobError, describe
from rljob_runtime.processes.clock import unix_seconds
from rljob_runtime.processes.device_roles import role_of
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.record.event_types import ResizeEvent, WarningEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.joining import NOT_READY, Joiner, Joiners
from rljob_runtime.run.scale_requests import ScaleRequest, ScaleRequests
from rljob_runtime.worker.device_role import DeviceRole

MAX_FAILED_JOINS = 3


@dataclass(slots=True, kw_only=True)
class RolloutScaler:
    """The rollout devices of a run, scaled to the number that was requested.

    sync: gives all devices of the run the current weights and checks them. joined: called when new processes
    belong to the run. report_resize: writes the event of devices that joined or left. on_timeout:
    investigates the error of a deadline, while the late process still exists. failed: joins that failed since
    the latest request, which is `request`.
    """

    job: ResolvedJob
    actors: Actors
    requests: ScaleRequests
    log: EventLog
    sync: Callable[[], None]
    joined: Callable[[], None]
    report_resize: Callable[[ResizeEvent], None]
    on_timeout: Callable[[Exception], object] = lambda _: None
    joiners: Joiners = field(init=False)
    failed: int = 0
    request: ScaleRequest = field(init=False)

    def __post_init__(self) -> None:
        self.joiners = Joiners(pool=self.actors.pool)
        self.request = ScaleRequest(count=len(self.actors.generating()), turn=0, time=0.0)
        self.publish()

    def poll(self) -> None:
        """Start or drop devices as requested, and check which are ready. Never waits."""
        request, starting = self.requests.latest, self.joiners.starting
        if request.turn != self.request.turn:
            self.request, self.failed = request, 0
        elif not starting and request.count == len(self.actors.rollout_members()):
            return
        for rank, reason in self.joiners.poll():
            if reason.startswith(NOT_READY):
                late = f"{self.joiners.starting[rank].name}: {reason}"
                self.on_timeout(DeadlineError(late, stage="join"))
            self._give_up(self.joiners.starting.pop(rank), reason)
        num_devices = len(self.actors.rollout_members()) + len(self.joiners.roles())
        missing = (request.count - num_devices) // self._devices_per_model
        for rank in sorted(starting)[missing:] if missing < 0 else []:
            self._dismiss(starting.pop(rank))
        for _ in range(missing if self.failed < MAX_FAILED_JOINS else 0):
            self.joiners.start(self._free_roles())
        self.publish()

    @property
    def has_changes(self) -> bool:
        """True if `apply` would let devices join or leave."""
        return self._target(self.request.count) != len(self.actors.rollout_members())

    def apply(self, step: int) -> None:
        """Let devices that are ready join, or those that are too many leave. step: number of completed steps.

        Raises what `sync` and `Actors.meet` raise for devices that were in the run before.
        """
        self.poll()
        request, before = self.request, len(self.actors.rollout_members())
        target = self._target(request.count)
        if target == before:
            return
        start, leaving = unix_seconds(), self.actors.rollout_members()[target:]
        if leaving:
            self._leave(leaving)
        else:
            self._join(self.joiners.ready()[: (target - before) // self._devices_per_model])
        self.publish()
        after, end = len(self.actors.rollout_members()), unix_seconds()
        if after != before:
            self.report_resize(
                ResizeEvent(
                    from_=before,
                    to=after,
                    step=step,
                    waited_seconds=start - request.time,
                    stopped_seconds=end - start,
                    given_up=self.failed,
                )
            )
        for member in reversed(leaving):  # after the event: a new driver still finds all
            self._dismiss(member)

    def most_without(self, away: Sequence[Joiner]) -> int:
        """Return how many of the generating devices can continue without these worlds; 0 if the job
        cannot."""
        num_remaining = len(self.actors.rollout_members()) - sum(
            len(joiner.roles) for joiner in away
        )
        return next((n for n in range(num_remaining, 0, -1) if self.requests.may_have(n)), 0)

    def leave_out(self, away: Sequence[Joiner]) -> list[Member]:
        """Let worlds of the run join again later, when their nodes or pods are back, and return their
        devices. Other devices, which the job cannot use without them, become ready to join meanwhile."""
        if not away:
            return []
        ranks, most = (
            {role.rank for world in away for role in world.roles},
            self.most_without(away),
        )
        present = self.actors.rollout_members()
        left_out = [member for member in present if member.role.rank in ranks]
        unused = [member for member in present if member not in left_out][most:]
        worlds = [
            unused[start : start + self._devices_per_model]
            for start in range(0, len(unused), self._devices_per_model)
        ]
        for joiner in [*away, *map(Joiner.of, worlds)]:
            self.joiners.starting[joiner.roles[0].rank] = joiner
        self.actors.members = [m for m in self.actors.members if m not in [*left_out, *unused]]
        self.request = replace(self.request, time=unix_seconds())
        return left_out

    def _target(self, requested: int) -> int:
        """Return the number of devices for the next step: as many of those that are ready as the job can
        have."""
        present = len(self.actors.rollout_members())
        if requested <= present:
            return requested
        most = min(requested, present + sum(len(ready.roles) for ready in self.joiners.ready()))
        return next((n for n in range(most, present, -1) if self.requests.may_have(n)), present)

    def _leave(self, leaving: list[Member]) -> None:
        """Remove devices between two steps, when no device has leased rows."""
        for member in leaving:
            self.actors.members.remove(member)
        self.actors.meet()

    def _join(self, joining: list[Joiner]) -> None:
        for joiner in joining:
            del self.joiners.starting[joiner.roles[0].rank]
            self.actors.members += joiner.members
        try:
            self.actors.meet()
            self.sync()
        except RljobError as error:
            self.on_timeout(error)
            self._turn_away(joining, describe(error))
        else:
            self.joined()

    def _turn_away(self, joining: list[Joiner], reason: str) -> None:
        """Continue without the devices that were joining. If another device caused the failure, this fails
        too."""
        ranks = {role.rank for joiner in joining for role in joiner.roles}
        self.actors.members = [m for m in self.actors.members if m.role.rank not in ranks]
        for joiner in joining:
            self._give_up(joiner, reason)
        self.actors.meet()
        self.sync()

    def _give_up(self, joiner: Joiner, reason: str) -> None:
        self.failed += 1
        self._dismiss(joiner)
        outcome = (
            "is tried again" if self.failed < MAX_FAILED_JOINS else "is the last that is tried"
        )
        message = f"{joiner.name} did not join and {outcome}: {reason}"
        self.log.write(WarningEvent(message=message))

    def _dismiss(self, leaving: Joiner | Member) -> None:
        staying = {role.node for role in self._roles()}
        workers, roles = (
            ([leaving.worker], [leaving.role])
            if isinstance(leaving, Member)
            else (leaving.workers, leaving.roles)
        )
        for worker, role in zip(workers, roles, strict=True):
            self.actors.pool.dismiss(worker, role, staying=staying)

    def _free_roles(self) -> list[DeviceRole]:
        """Return the roles of the first world of devices that the run neither has nor waits for."""
        taken = {role.rank for role in self._roles()}
        first = self.job.spec.roles.update
        while first in taken:
            first += self._devices_per_model
        return [role_of(self.job, rank) for rank in range(first, first + self._devices_per_model)]

    @property
    def _devices_per_model(self) -> int:
        """Number of devices that hold one model together: they join and leave as a unit."""
        return self.job.spec.rollout.parallelism.model_devices

    def _roles(self) -> list[DeviceRole]:
        """Return the roles of all devices that the run has or waits for."""
        members = [*self.actors.members, *self.actors.left_out]
        return [*(member.role for member in members), *self.joiners.roles()]

    def publish(self) -> None:
        """Publish which devices generate, and where."""
        given_up = self.failed >= MAX_FAILED_JOINS
        self.requests.publish(
            [member.place for member in self.actors.rollout_members()],
            hosts=[member.place.host for member in self.actors.members],
            joining=len(self.joiners.roles()),
            message=f"{self.failed} devices failed to join; see the warnings" if given_up else "",
        )
