"""Devices that train and have no place, since their node or pod is gone: the update goes on without them, and
takes them in again (`elastic.update`).

Used by `recovery`, which makes new groups of those that are there, and by the loop, which asks between two
steps whether somebody is back. Each holds all of the model, so that any of them are whole replicas.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION
from dataclasses import dataclass, field

from rljob_api.topology.fewer_replicas import fewest_replicas
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import DeadlineError
from rljob_runtime.processes.calls import START_DEADLINE_SECONDS, ended_of
from rljob_runtime.processes.clock import monotonic, sleep
from rljob_runtime.processes.device_pool import DevicePool
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.event_types import ReplicasEvent, WarningEvent
from rljob_runtime.record.events import EventLog

PLACE_SECONDS = 10.0
"""How long a device has no place before the others go on without it, or the run tells that it waits."""
AGAIN_SECONDS = 10.0
"""After a process that was to come back died on its way, until another one is started."""
LOOK_SECONDS = 0.1


class Back(Exception):
    """Devices that were left out are there again. Caught by the loop."""


@dataclass(slots=True, kw_only=True)
class LeftOut:
    """Those of one run, which `actors.left_out` has. moves: called while it waits."""

    job: ResolvedJob
    actors: Actors
    log: EventLog
    moves: Callable[[], None] = lambda: None
    _answers: dict[int, Call] = field(default_factory=dict, init=False)
    """Of their processes, which answer once they are placed and have started."""
    _again: dict[int, float] = field(default_factory=dict, init=False)
    """When another process is started for those whose last one died; at once where an earlier driver started
    it."""
    _told: tuple[int, list[int]] | None = field(default=None, init=False)
    """How many train and who does not, as was last told."""

    @property
    def possible(self) -> bool:
        """Whether training may go on with fewer devices."""
        return fewest_replicas(self.job.spec) is not None

    @property
    def back(self) -> list[Member]:
        """Those that are there again."""
        self._look()
        return [m for m in self.actors.left_out if self._is_there(m.role.rank)]

    def apply(self) -> None:
        """Raise Back where somebody is: all meet anew."""
        if back := self.back:
            raise Back(f"{_named(back)} {'is' if len(back) == 1 else 'are'} there again")

    def part(self, lost: Sequence[Member]) -> None:
        """They have died: others are to come in their places, and are waited for by `come`."""
        self.actors.members = [m for m in self.actors.members if m not in lost]
        self.actors.left_out += lost
        for member in lost:
            self._hire(member)

    def come(
        self, lost: Sequence[Member], *, living: int, since: float | None = None
    ) -> list[Member]:
        """Those that are there, which are left out no more. Waits for the lost, as long as each has a place
        or had one until now; and, where too few live, for anybody. since: when they were missed (monotonic
        seconds), now without. Raises DeadlineError."""
        fewest, began = fewest_replicas(self.job.spec) or 0, monotonic()
        placed, told = began if since is None else since, False
        while True:
            back, now = self.back, monotonic()
            missing = [m for m in lost if m not in back]
            if any(self.actors.pool.has_place(m.role.node) for m in missing):
                placed = now
            enough, waited = living + len(back) >= fewest, now - began
            if enough and (not missing or now - placed > PLACE_SECONDS):
                break
            if missing and now - placed > PLACE_SECONDS and not told:
                self.log.write(waits_for(_named(missing), "too few replicas live without"))
                told = True
            if waited > START_DEADLINE_SECONDS:
                if enough:
                    break
                raise DeadlineError(
                    f"{living + len(back)} replicas were there within {START_DEADLINE_SECONDS:.0f} s, and "
                    f"training goes on with {fewest} at least (spec.elastic.update.minReplicas)",
                    stage="device-worker",
                )
            self.moves()
            sleep(LOOK_SECONDS)
        for member in back:
            self.actors.left_out.remove(member)
            del self._answers[member.role.rank]
        self.actors.members += back
        return back

    def tell(self, step: int, *, seconds: float = 0.0) -> None:
        """Say how many train after this step, where that has changed. seconds: without a step for it."""
        away = sorted(self.actors.left_out, key=lambda member: member.role.rank)
        live, left_out = len(self.actors.update_members()), [member.role.rank for member in away]
        if self._told == (live, left_out):
            return
        self._told = live, left_out
        self.log.write(
            ReplicasEvent(
                step=step,
                live=live,
                wanted=self.job.spec.update.parallelism.data,
                left_out=left_out,
                hosts=sorted({member.place.host for member in away}),
                seconds=seconds,
            )
        )

    def _look(self) -> None:
        """Start another process in the place of one that died before it was back. Never waits."""
        for member in self.actors.left_out:
            rank, answer = member.role.rank, self._answers.get(member.role.rank)
            if answer is None:
                if monotonic() > self._again.get(rank, 0.0):
                    self._hire(member)
            elif answer.done() and answer.exception():
                del self._answers[rank]
                self._again[rank] = monotonic() + AGAIN_SECONDS

    def _hire(self, member: Member) -> None:
        pool = self.actors.pool
        pool.workers.end(member.worker)
        member.worker = pool.hire(member.role)
        self._answers[member.role.rank] = member.worker.address()

    def _is_there(self, rank: int) -> bool:
        answer = self._answers.get(rank)
        return answer is not None and answer.done() and not answer.exception()


def tell_waits(
    members: Sequence[Member], calls: Sequence[Call], *, pool: DevicePool, log: EventLog
) -> None:
    """For which of these devices the run waits, where some have no place for a while. calls: that they answer
    once they have started. Returns sooner where all have, or one has failed."""
    _, pending = ended_of(calls, seconds=PLACE_SECONDS, until=FIRST_EXCEPTION)
    away = [m for m in members if pending and not pool.has_place(m.role.node)]
    if away:
        log.write(waits_for(_named(away), "all train together"))


def waits_for(names: str, why: str) -> WarningEvent:
    """That the run waits for devices without a place."""
    return WarningEvent(
        message=f"{names}: no place since {PLACE_SECONDS:.0f} s, as the node or the pod is gone; {why}, "
        f"and the run waits for {START_DEADLINE_SECONDS:.0f} s at most"
    )


def _named(members: Sequence[Member]) -> str:
    """`device 1`, `devices 1 and 3`."""
    numbers = " and ".join(str(member.role.rank) for member in members)
    return f"device{'s' if len(members) > 1 else ''} {numbers}"
