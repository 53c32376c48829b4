"""The fastest layouts of a job that fit, looked for in the order of what they would take at best.

Called by the CLI's `plan --search`. The time of a step follows from either role's degrees, so pairs of them
come in the order of a bound: as though all sequences and the largest micro-batches had room, and no weights
were moved. The search ends when no pair that is left can be among those asked for, or after so many pairs.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rljob_api.spec.engines import Placement
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.memory import Memory
from rljob_plan.search.candidates import Placements
from rljob_plan.search.degrees import Degrees
from rljob_plan.search.estimates import Estimates, Found

MOST_PAIRS = 2000
MOST_CHECKED = 64
"""Layouts whose reshard is planned, which takes longer than all else: up to a quarter of a second each."""
MOST_UNTIL_ONE_FITS = 256
"""Likewise while none of them fits."""

_Degrees = tuple[Placement, UpdateDegrees, RolloutDegrees]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A layout with the job that has it. job: as a user would write it. memory: of its plan."""

    found: Found
    job: RLJob
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The job's own layout. problems: why it does not fit. place: by time among the layouts that fit, from 1;
    None where it does not fit. Of those that are not proposed, the reshard may be unplanned: they count.
    at_least: whether the search ended before all faster ones were looked at."""

    found: Found
    memory: Memory
    problems: list[Problem]
    place: int | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of layouts: degrees of both roles, whatever their micro-batches. tried: all of them. illegal: refused
    by the rules. too_large: that alone take more memory than there is. looked_at: of the others, in the order
    of what they would take at best. no_room: of these, that fit with no setting, or not with their reshard.
    unchecked: of the rest, whose reshard was not planned as it was of too many. ended: whether the search
    ended before all that could be faster were looked at, or checked."""

    tried: int
    illegal: int
    too_large: int
    looked_at: int
    no_room: int
    unchecked: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What a search has found. proposals: the fastest first. fitting: layouts of those looked at that fit."""

    job: RLJob
    proposals: tuple[Proposal, ...]
    fitting: int
    own: Own
    counts: Counts


def rank(
    estimates: Estimates, *, top: int, placements: Placements = "job", most: int = MOST_PAIRS
) -> Ranking:
    """The `top` fastest layouts, the job's own among those that are looked at. most: pairs of degrees."""
    roles, own = _roles(estimates, placements), _own(estimates)
    pairs = _Pairs(estimates, top=top, most=most, own=None if own.problems else own)
    pairs.look(roles)
    fitting = pairs.fitting
    counts = Counts(
        tried=sum(role.tried for role in roles),
        illegal=sum(role.illegal for role in roles),
        too_large=sum(role.too_large for role in roles),
        looked_at=pairs.looked_at,
        no_room=pairs.looked_at - len(fitting),
        unchecked=pairs.unchecked,
        ended=pairs.ended or pairs.gave_up,
    )
    if not own.problems:
        faster = sum(one.seconds < own.found.seconds for one in fitting)
        own = replace(own, place=1 + faster, at_least=pairs.ended)
    return Ranking(
        job=estimates.job,
        proposals=tuple(pairs.proposals),
        fitting=len(fitting),
        own=own,
        counts=counts,
    )


def first_that_fits(estimates: Estimates, *, placements: Placements, most: int) -> Proposal | None:
    """A layout that fits, of the `most` that would be fastest; the job's own may be illegal."""
    pairs = _Pairs(estimates, top=1, most=most, own=None)
    pairs.look(_roles(estimates, placements))
    return pairs.proposals[0] if pairs.proposals else None


def _roles(estimates: Estimates, placements: Placements) -> list[Degrees]:
    asked = estimates.space.placements(placements)
    return [Degrees(estimates, placement) for placement in asked]


class _Pairs:
    """What is looked at, and of it the fastest that fit with their reshard. own: the job's layout where it
    fits, whose place is asked for, too."""

    def __init__(self, estimates: Estimates, *, top: int, most: int, own: Own | None) -> None:
        self.looked_at, self.ended, self.gave_up = 0, False, False
        self._estimates, self._top, self._most, self._own = estimates, top, most, own
        self._fit: list[Proposal] = []
        self._waiting: list[tuple[float, int, Found]] = []  # a heap of those not checked yet
        self._seen: set[_Degrees] = set()
        self._checked = 0

    @property
    def proposals(self) -> list[Proposal]:
        """The fastest first."""
        return sorted(self._fit, key=lambda one: one.found.seconds)[: self._top]

    @property
    def fitting(self) -> list[Found]:
        """Of those looked at; the reshard of some that are not proposed is unplanned."""
        found = [one.found for one in self._fit]
        checked = set(map(_degrees, found))
        return found + [one for _, _, one in self._waiting if _degrees(one) not in checked]

    @property
    def unchecked(self) -> int:
        """That were still to be checked when the search gave up."""
        return len(self._waiting) if self.gave_up else 0

    def look(self, roles: Sequence[Degrees]) -> None:
        """Until no pair that is left matters, or enough were looked at."""
        until = self._own.found.seconds if self._own else 0.0
        for bound, degrees, update, rollout in _in_order(roles):
            self._check(before=bound)
            if self._enough and bound > until:
                break
            if self.looked_at == self._most:
                self.ended = True
                break
            self._take(degrees.fastest(update, rollout))
        self._check(before=math.inf)
        self.gave_up = self._enough and len(self._fit) < self._top
        if self._own:
            self._add(self._own)

    @property
    def _enough(self) -> bool:
        most = MOST_CHECKED if self._fit or self._own else MOST_UNTIL_ONE_FITS
        return len(self._fit) == self._top or self._checked >= most

    def _take(self, one: Found | None) -> None:
        self.looked_at += 1
        if one is not None:
            self._seen.add(_degrees(one))
            heapq.heappush(self._waiting, (one.seconds, self.looked_at, one))

    def _check(self, *, before: float) -> None:
        """Plan the reshard of those that are faster than all that is left."""
        while self._waiting and self._waiting[0][0] < before and not self._enough:
            one = heapq.heappop(self._waiting)[2]
            self._checked += 1
            memory = self._estimates.memory(one.layout, with_reshard=True)
            if not self._estimates.memory_problems(one.layout, memory):
                self._propose(one, memory)

    def _propose(self, one: Found, memory: Memory) -> None:
        job = self._estimates.space.job_of(one.layout)
        self._fit.append(Proposal(found=one, job=job, memory=memory))

    def _add(self, own: Own) -> None:
        """Take the job's own layout in, unless its degrees fit already in a faster way."""
        mine = _degrees(own.found)
        self.looked_at += mine not in self._seen
        known = [one.found for one in self._fit] if self.gave_up else self.fitting
        if mine not in set(map(_degrees, known)):
            self._propose(own.found, own.memory)


def _degrees(found: Found) -> _Degrees:
    layout = found.layout
    return layout.placement, layout.update, layout.rollout


def _in_order(roles: Sequence[Degrees]) -> Iterator[tuple[float, Degrees, int, int]]:
    """Pairs of degrees by their bounds: (bound, placement, number of the update's, of the rollout's)."""
    heap: list[tuple[float, int, int, int]] = []

    def push(role: int, update: int, rollout: int) -> None:
        degrees = roles[role]
        if update < len(degrees.updates) and rollout < len(degrees.rollouts):
            heapq.heappush(heap, (degrees.bound(update, rollout), role, update, rollout))

    for role in range(len(roles)):
        push(role, 0, 0)
    while heap:
        bound, role, update, rollout = heapq.heappop(heap)
        yield bound, roles[role], update, rollout
        push(role, update, rollout + 1)
        if rollout == 0:
            push(role, update + 1, 0)


def _own(estimates: Estimates) -> Own:
    layout = estimates.space.own
    memory = estimates.memory(layout, with_reshard=True)
    return Own(
        found=estimates.found(layout, memory),
        memory=memory,
        problems=estimates.memory_problems(layout, memory),
    )
