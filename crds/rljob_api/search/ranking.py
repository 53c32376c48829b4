"""The fastest layouts of a job that fit, looked for in the order of what they would take at best.

Called by the CLI's `plan --search`. The time of a step follows from either role's degrees, so pairs of them
come in the order of a bound: as though all sequences and the largest micro-batches had room, and no weights
were moved. The search ends when no pair that is left can be among those asked for, or after so many pairs.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rljob_api.memory import Memory
from rljob_api.problems import Problem
from rljob_api.rljob import RLJob
from rljob_api.search.candidates import Placements
from rljob_api.search.degrees import Degrees
from rljob_api.search.estimates import Estimates, Found

MOST_PAIRS = 2000
MOST_CHECKED = 64
"""Layouts whose reshard is planned, which takes longer than all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A layout with the job that has it. job: as a user would write it. memory: of its plan."""

    found: Found
    job: RLJob
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The job's own layout. problems: why it does not fit. place: by time among the layouts that fit, from 1;
    None where it does not fit. at_least: whether the search ended before all faster ones were looked at."""

    found: Found
    memory: Memory
    problems: list[Problem]
    place: int | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Of layouts: degrees of both roles, whatever their micro-batches. tried: all of them. illegal: refused
    by the rules. too_large: that alone take more memory than there is. looked_at: of the others, in the order
    of what they would take at best. no_room: of these, that fit with no setting. ended: whether the search
    ended before all that could be faster were looked at."""

    tried: int
    illegal: int
    too_large: int
    looked_at: int
    no_room: int
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
    pairs = _Pairs(top=top, most=most, until=0.0 if own.problems else own.found.seconds)
    _look(roles, pairs)
    if not own.problems:
        pairs.add(own.found)
    pairs.found.sort(key=lambda one: one.seconds)
    proposals, dropped = _checked(estimates, pairs.found, top)
    counts = Counts(
        tried=sum(role.tried for role in roles),
        illegal=sum(role.illegal for role in roles),
        too_large=sum(role.too_large for role in roles),
        looked_at=pairs.looked_at,
        no_room=pairs.looked_at - len(pairs.found) + dropped,
        ended=pairs.ended,
    )
    return Ranking(
        job=estimates.job,
        proposals=tuple(proposals),
        fitting=len(pairs.found) - dropped,
        own=_placed(own, pairs),
        counts=counts,
    )


def first_that_fits(estimates: Estimates, *, placements: Placements, most: int) -> Proposal | None:
    """A layout that fits, of the `most` that would be fastest; the job's own may be illegal."""
    pairs = _Pairs(top=1, most=most, until=0.0)
    _look(_roles(estimates, placements), pairs)
    proposals, _ = _checked(estimates, sorted(pairs.found, key=lambda one: one.seconds), 1)
    return proposals[0] if proposals else None


def _roles(estimates: Estimates, placements: Placements) -> list[Degrees]:
    asked = estimates.space.placements(placements)
    return [Degrees(estimates, placement) for placement in asked]


def _look(roles: Sequence[Degrees], pairs: "_Pairs") -> None:
    for bound, degrees, update, rollout in _in_order(roles):
        if pairs.end_before(bound):
            break
        pairs.look_at(degrees.fastest(update, rollout))


class _Pairs:
    """What has been looked at. until: seconds of the job's own layout, whose place is asked for, too."""

    def __init__(self, *, top: int, most: int, until: float) -> None:
        self.found: list[Found] = []
        self.looked_at, self.ended = 0, False
        self._top, self._most, self._until = top, most, until
        self._shortest: list[float] = []  # negative: the longest of the `top` comes first

    def end_before(self, bound: float) -> bool:
        """Whether none that takes this or longer matters, or enough were looked at."""
        enough = len(self._shortest) == self._top and -self._shortest[0] < bound
        if enough and bound > self._until:
            return True
        self.ended = self.looked_at == self._most
        return self.ended

    def look_at(self, one: Found | None) -> None:
        """Take a layout in; None for one without room."""
        self.looked_at += 1
        if one is None:
            return
        self.found.append(one)
        heapq.heappush(self._shortest, -one.seconds)
        if len(self._shortest) > self._top:
            heapq.heappop(self._shortest)

    def add(self, own: Found) -> None:
        """Take the job's own layout in, unless its degrees were looked at."""
        degrees = [
            (one.layout.placement, one.layout.update, one.layout.rollout) for one in self.found
        ]
        mine = (own.layout.placement, own.layout.update, own.layout.rollout)
        if mine not in degrees:
            self.found.append(own)
            self.looked_at += 1


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


def _checked(estimates: Estimates, found: list[Found], top: int) -> tuple[list[Proposal], int]:
    """The first that fit with their reshard, too; and how many of the looked-at do not."""
    proposals: list[Proposal] = []
    dropped = 0
    for one in found[:MOST_CHECKED]:
        memory = estimates.memory(one.layout, with_reshard=True)
        if estimates.memory_problems(one.layout, memory):
            dropped += 1
        else:
            job = estimates.space.job_of(one.layout)
            proposals.append(Proposal(found=one, job=job, memory=memory))
        if len(proposals) == top:
            break
    return proposals, dropped


def _own(estimates: Estimates) -> Own:
    layout = estimates.space.own
    memory = estimates.memory(layout, with_reshard=True)
    return Own(
        found=estimates.found(layout, memory),
        memory=memory,
        problems=estimates.memory_problems(layout, memory),
    )


def _placed(own: Own, pairs: _Pairs) -> Own:
    if own.problems:
        return own
    faster = sum(one.seconds < own.found.seconds for one in pairs.found)
    return replace(own, place=1 + faster, at_least=pairs.ended)
