"""Update devices whose node or pod is gone: training continues without them, and takes them back when they
return (`elastic.update`).

`recovery` creates new groups from the present devices. The loop checks between two steps whether a device has
returned. Each device holds the full model, so any subset of them is a set of full replicas.
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
"""How long a device may lack a node before the others continue without it, or the run reports that it
waits."""
AGAIN_SECONDS = 10.0
"""Pause before another process is started, after one that was to return died on its way."""
LOOK_SECONDS = 0.1


class DevicesReturned(Exception):
    """Devices that were left out are available again. Caught by the loop."""


@dataclass(slots=True, kw_only=True)
class LeftOutDevices:
    """The devices in `actors.left_out` of one run. on_wait: called while it waits."""

    job: ResolvedJob
    actors: Actors
    log: EventLog
    on_wait: Callable[[], None] = lambda: None
    _answers: dict[int, Call] = field(default_factory=dict, init=False)
    """Calls on the devices' new processes, which answer once they are placed and have started."""
    _restart_times: dict[int, float] = field(default_factory=dict, init=False)
    """When another process is started for devices whose last one died; immediately if an earlier driver
    started it."""
    _reported: tuple[int, list[int]] | None = field(default=None, init=False)
    """The number of training devices and the left-out ones, as last reported."""

    @property
    def possible(self) -> bool:
        """Whether training may continue with fewer devices."""
        return fewest_replicas(self.job.spec) is not None

    @property
    def returned(self) -> list[Member]:
        """The devices that are available again."""
        self._restart_dead()
        return [m for m in self.actors.left_out if self._has_started(m.role.rank)]

    def apply(self) -> None:
        """Raise DevicesReturned if a device is available again, so that all devices create new groups."""
        if returned := self.returned:
            raise DevicesReturned(
                f"{_named(returned)} {'is' if len(returned) == 1 else 'are'} there again"
            )

    def replace_lost(self, lost: Sequence[Member]) -> None:
        """Start other processes for devices that died; `await_members` waits for them."""
        self.actors.members = [m for m in self.actors.members if m not in lost]
        self.actors.left_out += lost
        for member in lost:
            self._restart(member)

    def await_members(
        self, lost: Sequence[Member], *, living: int, since: float | None = None
    ) -> list[Member]:
        """Return the devices that are available, and remove them from those left out. Waits for the lost
        devices as long as each has a node, or had one until recently. Waits for any device if too few live.
        since: when they were found missing (monotonic seconds); default: now. Raises DeadlineError."""
        fewest, start = fewest_replicas(self.job.spec) or 0, monotonic()
        placed, reported = start if since is None else since, False
        while True:
            returned, time_s = self.returned, monotonic()
            missing = [m for m in lost if m not in returned]
            if any(self.actors.pool.has_place(m.role.node) for m in missing):
                placed = time_s
            enough, waited = living + len(returned) >= fewest, time_s - start
            if enough and (not missing or time_s - placed > PLACE_SECONDS):
                break
            if missing and time_s - placed > PLACE_SECONDS and not reported:
                self.log.write(
                    missing_node_warning(_named(missing), "too few replicas live without")
                )
                reported = True
            if waited > START_DEADLINE_SECONDS:
                if enough:
                    break
                raise DeadlineError(
                    f"{living + len(returned)} replicas were there within {START_DEADLINE_SECONDS:.0f} s, "
                    f"and training goes on with {fewest} at least (spec.elastic.update.minReplicas)",
                    stage="device-worker",
                )
            self.on_wait()
            sleep(LOOK_SECONDS)
        for member in returned:
            self.actors.left_out.remove(member)
            del self._answers[member.role.rank]
        self.actors.members += returned
        return returned

    def report(self, step: int, *, seconds: float = 0.0) -> None:
        """Write how many devices train after this step, if that has changed. seconds: time without a step
        because of it."""
        away = sorted(self.actors.left_out, key=lambda member: member.role.rank)
        live, left_out = len(self.actors.update_members()), [member.role.rank for member in away]
        if self._reported == (live, left_out):
            return
        self._reported = live, left_out
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

    def _restart_dead(self) -> None:
        """Start another process for each device whose process died before it returned. Never waits."""
        for member in self.actors.left_out:
            rank, answer = member.role.rank, self._answers.get(member.role.rank)
            if answer is None:
                if monotonic() > self._restart_times.get(rank, 0.0):
                    self._restart(member)
            elif answer.done() and answer.exception():
                del self._answers[rank]
                self._restart_times[rank] = monotonic() + AGAIN_SECONDS

    def _restart(self, member: Member) -> None:
        pool = self.actors.pool
        pool.workers.end(member.worker)
        member.worker = pool.hire(member.role)
        self._answers[member.role.rank] = member.worker.address()

    def _has_started(self, rank: int) -> bool:
        answer = self._answers.get(rank)
        return answer is not None and answer.done() and not answer.exception()


def warn_of_missing_nodes(
    members: Sequence[Member], calls: Sequence[Call], *, pool: DevicePool, log: EventLog
) -> None:
    """Warn if the run waits for some of these devices because they have lacked a node for a while. calls:
    answered once the devices have started. Returns earlier if all have started, or one has failed."""
    _, pending = ended_of(calls, seconds=PLACE_SECONDS, until=FIRST_EXCEPTION)
    away = [m for m in members if pending and not pool.has_place(m.role.node)]
    if away:
        log.write(missing_node_warning(_named(away), "all train together"))


def missing_node_warning(names: str, reason: str) -> WarningEvent:
    """Return the warning that the run waits for devices without a node."""
    return WarningEvent(
        message=f"{names}: no place since {PLACE_SECONDS:.0f} s, as the node or the pod is gone; {reason}, "
        f"and the run waits for {START_DEADLINE_SECONDS:.0f} s at most"
    )


def _named(members: Sequence[Member]) -> str:
    """Return the name of the devices in a message: `device 1`, `devices 1 and 3`."""
    numbers = " and ".join(str(member.role.rank) for member in members)
    return f"device{'s' if len(members) > 1 else ''} {numbers}"
