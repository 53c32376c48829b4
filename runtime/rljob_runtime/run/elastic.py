"""Rollout devices come and go between two steps, while the devices that train stay.

Called by the driver: `look` whenever it waits, `apply` after each step. Devices that are asked for
start in the background and join once they are ready; devices that are too many do their share of the
step and leave after it. A device that fails on its way in is given up, and training goes on.
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
from rljob_runtime.run.scale_requests import Asked, ScaleRequests
from rljob_runtime.worker.device_role import DeviceRole

MAX_FAILED_JOINS = 3


@dataclass(slots=True, kw_only=True)
class Elastic:
    """The rollout devices of a run and who asks for others.

    sync: gives all devices of the run the present weights and checks that they hold them. joined: called
    when new processes belong to the run. told: writes the event of those who came or left. hung: looks into a
    deadline's error, while who was late is there. failed: joins that failed since the last question, which
    was `seen`.
    """

    job: ResolvedJob
    actors: Actors
    requests: ScaleRequests
    log: EventLog
    sync: Callable[[], None]
    joined: Callable[[], None]
    told: Callable[[ResizeEvent], None]
    hung: Callable[[Exception], object] = lambda _: None
    joiners: Joiners = field(init=False)
    failed: int = 0
    seen: Asked = field(init=False)

    def __post_init__(self) -> None:
        self.joiners = Joiners(pool=self.actors.pool)
        self.seen = Asked(count=len(self.actors.generating()), turn=0, time=0.0)
        self.tell()

    def look(self) -> None:
        """Start or drop devices as asked for, see which are ready. Never waits."""
        asked, coming = self.requests.asked, self.joiners.coming
        if asked.turn != self.seen.turn:
            self.seen, self.failed = asked, 0
        elif not coming and asked.count == len(self.actors.rollout_members()):
            return
        for rank, reason in self.joiners.look():
            if reason.startswith(NOT_READY):
                late = f"{self.joiners.coming[rank].name}: {reason}"
                self.hung(DeadlineError(late, stage="join"))
            self._give_up(self.joiners.coming.pop(rank), reason)
        there = len(self.actors.rollout_members()) + len(self.joiners.roles())
        missing = (asked.count - there) // self._together
        for rank in sorted(coming)[missing:] if missing < 0 else []:
            self._dismiss(coming.pop(rank))
        for _ in range(missing if self.failed < MAX_FAILED_JOINS else 0):
            self.joiners.start(self._free_roles())
        self.tell()

    @property
    def waits(self) -> bool:
        """True when `apply` would let devices join or leave."""
        return self._target(self.seen.count) != len(self.actors.rollout_members())

    def apply(self, step: int) -> None:
        """Let those who are ready join and those who are too many leave; `step` steps are done.

        Raises what `sync` and `Actors.meet` raise for devices that were there before.
        """
        self.look()
        asked, before = self.seen, len(self.actors.rollout_members())
        target = self._target(asked.count)
        if target == before:
            return
        began, leaving = unix_seconds(), self.actors.rollout_members()[target:]
        if leaving:
            self._leave(leaving)
        else:
            self._join(self.joiners.ready()[: (target - before) // self._together])
        self.tell()
        after, ended = len(self.actors.rollout_members()), unix_seconds()
        if after != before:
            self.told(
                ResizeEvent(
                    from_=before,
                    to=after,
                    step=step,
                    waited_seconds=began - asked.time,
                    stopped_seconds=ended - began,
                    given_up=self.failed,
                )
            )
        for member in reversed(leaving):  # whoever takes over this driver misses none of them
            self._dismiss(member)

    def most_without(self, away: Sequence[Joiner]) -> int:
        """So many of the devices that generate can go on without these worlds; 0: the job cannot."""
        rest = len(self.actors.rollout_members()) - sum(len(joiner.roles) for joiner in away)
        return next((n for n in range(rest, 0, -1) if self.requests.may_have(n)), 0)

    def leave_out(self, away: Sequence[Joiner]) -> list[Member]:
        """Have worlds of the run join later, whenever their places are there. Returns their devices. Others,
        which the job cannot have without them, are ready to join meanwhile."""
        if not away:
            return []
        ranks, most = {role.rank for each in away for role in each.roles}, self.most_without(away)
        present = self.actors.rollout_members()
        left = [member for member in present if member.role.rank in ranks]
        rest = [member for member in present if member not in left][most:]
        worlds = [rest[at : at + self._together] for at in range(0, len(rest), self._together)]
        for joiner in [*away, *map(Joiner.of, worlds)]:
            self.joiners.coming[joiner.roles[0].rank] = joiner
        self.actors.members = [m for m in self.actors.members if m not in [*left, *rest]]
        self.seen = replace(self.seen, time=unix_seconds())
        return left

    def _target(self, wanted: int) -> int:
        """The number for the next step: as many of those who are ready as the job can have."""
        present = len(self.actors.rollout_members())
        if wanted <= present:
            return wanted
        most = min(wanted, present + sum(len(ready.roles) for ready in self.joiners.ready()))
        return next((n for n in range(most, present, -1) if self.requests.may_have(n)), present)

    def _leave(self, leaving: list[Member]) -> None:
        """Between two steps nobody has claimed rows: who leaves owes nothing."""
        for member in leaving:
            self.actors.members.remove(member)
        self.actors.meet()

    def _join(self, joining: list[Joiner]) -> None:
        for joiner in joining:
            del self.joiners.coming[joiner.roles[0].rank]
            self.actors.members += joiner.members
        try:
            self.actors.meet()
            self.sync()
        except RljobError as error:
            self.hung(error)
            self._turn_away(joining, describe(error))
        else:
            self.joined()

    def _turn_away(self, joining: list[Joiner], reason: str) -> None:
        """Go on without them: if somebody else was at fault, that fails here as well."""
        ranks = {role.rank for joiner in joining for role in joiner.roles}
        self.actors.members = [m for m in self.actors.members if m.role.rank not in ranks]
        for joiner in joining:
            self._give_up(joiner, reason)
        self.actors.meet()
        self.sync()

    def _give_up(self, joiner: Joiner, reason: str) -> None:
        self.failed += 1
        self._dismiss(joiner)
        what = "is tried again" if self.failed < MAX_FAILED_JOINS else "is the last that is tried"
        message = f"{joiner.name} did not join and {what}: {reason}"
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
        """Of the first world of devices that the run neither has nor waits for."""
        taken = {role.rank for role in self._roles()}
        first = self.job.spec.roles.update
        while first in taken:
            first += self._together
        return [role_of(self.job, rank) for rank in range(first, first + self._together)]

    @property
    def _together(self) -> int:
        """Devices that hold a model together: they come and go as one."""
        return self.job.spec.rollout.parallelism.model_devices

    def _roles(self) -> list[DeviceRole]:
        """Of all devices that the run has or waits for."""
        members = [*self.actors.members, *self.actors.left_out]
        return [*(member.role for member in members), *self.joiners.roles()]

    def tell(self) -> None:
        """Say which devices generate, and where."""
        given_up = self.failed >= MAX_FAILED_JOINS
        self.requests.tell(
            [member.place for member in self.actors.rollout_members()],
            hosts=[member.place.host for member in self.actors.members],
            joining=len(self.joiners.roles()),
            message=f"{self.failed} devices failed to join; see the warnings" if given_up else "",
        )
