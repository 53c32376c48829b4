"""Devices that generate and died: others in their places, or, where there is none, the run without them.

Used by `recovery`. A device that generates has nothing that the next sync does not bring: one whose node or
pod is gone joins later, as one that was asked for does (`elastic`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.errors import DeadlineError, RljobError
from rljob_runtime.processes.calls import START_DEADLINE_SECONDS, ended_of, results
from rljob_runtime.processes.clock import monotonic, sleep
from rljob_runtime.processes.device_roles import prepare
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.elastic import Elastic
from rljob_runtime.run.joining import Joiner
from rljob_runtime.run.left_out import LOOK_SECONDS, PLACE_SECONDS, waits_for


@dataclass(slots=True, kw_only=True)
class LostRollouts:
    """Those of one run. moves: called while it waits."""

    actors: Actors
    elastic: Elastic
    log: EventLog
    moves: Callable[[], None] = lambda: None
    _failed: RljobError | None = field(default=None, init=False)

    def replace(self, dead: Sequence[Member], *, meet_seconds: float) -> list[Member]:
        """Others in the places of those of these that generate alone, and of all that hold a model with them.
        Returns those that had no place for a while, which are left out; where the job cannot run without
        them, they are waited for.

        Raises DeadlineError, and what a device raised that did not start, once the others are there.
        """
        worlds = sorted({m.role.world for m in dead if m.role.update_rank is None})
        self._failed = None
        away = self._come([self._again(world, meet_seconds) for world in worlds])
        left = self.elastic.leave_out(away)
        if self._failed is not None:
            raise self._failed
        return left

    def _again(self, world: tuple[int, ...], meet_seconds: float) -> Joiner:
        """Other processes of these devices, which are on their way."""
        pool, members = self.actors.pool, self._members(world)
        for member in members:
            pool.workers.end(member.worker)
            member.worker = pool.hire(member.role)
        workers, roles = [m.worker for m in members], [m.role for m in members]
        prepared = prepare(workers, roles, meet_seconds=meet_seconds)
        return Joiner(roles=roles, workers=workers, prepared=prepared)

    def _come(self, coming: list[Joiner]) -> list[Joiner]:
        """Wait for them, as long as one that is not there has a place, or had one until now. Returns those
        without."""
        placed = began = monotonic()
        told = False
        while coming := [joiner for joiner in coming if self._starts(joiner)]:
            now = monotonic()
            away = [joiner for joiner in coming if not self._has_place(joiner)]
            if len(away) < len(coming):
                placed = now
            elif now - placed > PLACE_SECONDS and not told:
                if self.elastic.most_without(away):
                    return away
                self.log.write(waits_for(_named(away), "the job cannot run without"))
                told = True
            if now - began > START_DEADLINE_SECONDS:
                raise DeadlineError(
                    f"{_named(coming)}: not there within {START_DEADLINE_SECONDS:.0f} s",
                    stage="device-worker",
                )
            self.moves()
            sleep(LOOK_SECONDS)
        return []

    def _starts(self, joiner: Joiner) -> bool:
        """Whether it has neither started nor failed yet."""
        ended, pending = ended_of(joiner.prepared)
        try:
            places = results(ended)
        except RljobError as error:
            self._failed = error
            return False
        if not pending:
            ranks = tuple(role.rank for role in joiner.roles)
            for member, place in zip(self._members(ranks), places, strict=True):
                member.place = place
        return bool(pending)

    def _has_place(self, joiner: Joiner) -> bool:
        return all(self.actors.pool.has_place(role.node) for role in joiner.roles)

    def _members(self, ranks: tuple[int, ...]) -> list[Member]:
        return [m for m in self.actors.rollout_members() if m.role.rank in ranks]


def _named(joiners: Sequence[Joiner]) -> str:
    return ", ".join(joiner.name for joiner in joiners)
