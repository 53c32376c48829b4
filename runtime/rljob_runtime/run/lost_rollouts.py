"""Replace rollout devices that died, or, if a node is missing, continue the run without them.

`recovery` uses it. A rollout device has no state that the next sync does not bring. One whose node or pod is
gone joins later, as a requested device does (`elastic`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.errors import DeadlineError, RljobError
from rljob_runtime.processes.calls import START_DEADLINE_SECONDS, ended_of, results
from rljob_runtime.processes.clock import monotonic, sleep
from rljob_runtime.processes.device_roles import prepare
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.elastic import RolloutScaler
from rljob_runtime.run.joining import Joiner
from rljob_runtime.run.left_out import LOOK_SECONDS, PLACE_SECONDS, missing_node_warning


@dataclass(slots=True, kw_only=True)
class LostRollouts:
    """The lost rollout devices of one run. on_wait: called while it waits."""

    actors: Actors
    elastic: RolloutScaler
    log: EventLog
    on_wait: Callable[[], None] = lambda: None
    _failed: RljobError | None = field(default=None, init=False)

    def replace(self, dead: Sequence[Member], *, meet_seconds: float) -> list[Member]:
        """Start other processes for those of the dead devices that only generate, and for all that hold a
        model with them. Returns the devices that lacked a node for a while, which are left out. They are
        awaited if the job cannot run without them.

        Raises DeadlineError, and the error of a device that did not start, after the others have started.
        """
        worlds = sorted({m.role.world for m in dead if m.role.update_rank is None})
        self._failed = None
        away = self._await_starts([self._restart_world(world, meet_seconds) for world in worlds])
        left = self.elastic.leave_out(away)
        if self._failed is not None:
            raise self._failed
        return left

    def _restart_world(self, world: tuple[int, ...], meet_seconds: float) -> Joiner:
        """Start other processes for these devices, and return their joiner."""
        pool, members = self.actors.pool, self._members(world)
        for member in members:
            pool.workers.end(member.worker)
            member.worker = pool.hire(member.role)
        workers, roles = [m.worker for m in members], [m.role for m in members]
        prepared = prepare(workers, roles, meet_seconds=meet_seconds)
        return Joiner(roles=roles, workers=workers, prepared=prepared)

    def _await_starts(self, starting: list[Joiner]) -> list[Joiner]:
        """Wait for the joiners as long as one that has not started has a node, or had one until recently.
        Returns those without a node."""
        placed = start = monotonic()
        warned = False
        while starting := [joiner for joiner in starting if self._is_starting(joiner)]:
            time_s = monotonic()
            away = [joiner for joiner in starting if not self._has_place(joiner)]
            if len(away) < len(starting):
                placed = time_s
            elif time_s - placed > PLACE_SECONDS and not warned:
                if self.elastic.most_without(away):
                    return away
                self.log.write(missing_node_warning(_named(away), "the job cannot run without"))
                warned = True
            if time_s - start > START_DEADLINE_SECONDS:
                raise DeadlineError(
                    f"{_named(starting)}: not there within {START_DEADLINE_SECONDS:.0f} s",
                    stage="device-worker",
                )
            self.on_wait()
            sleep(LOOK_SECONDS)
        return []

    def _is_starting(self, joiner: Joiner) -> bool:
        """Return whether the joiner has neither started nor failed yet."""
        ended, pending = ended_of(joiner.prepared)
        try:
            places = results(ended)
        except RljobError as error:
            self._failed = error
            return False
        if not pending:
            ranks = tuple(role.rank for role in joiner.roles)
            for member, device_place in zip(self._members(ranks), places, strict=True):
                member.place = device_place
        return bool(pending)

    def _has_place(self, joiner: Joiner) -> bool:
        return all(self.actors.pool.has_place(role.node) for role in joiner.roles)

    def _members(self, ranks: tuple[int, ...]) -> list[Member]:
        return [m for m in self.actors.rollout_members() if m.role.rank in ranks]


def _named(joiners: Sequence[Joiner]) -> str:
    return ", ".join(joiner.name for joiner in joiners)
