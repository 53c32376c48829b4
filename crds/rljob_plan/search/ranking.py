"""Find the fastest layouts of a job that fit, in the order of a lower bound of their time.

Called by the CLI's `plan --search`. The time of a step follows from either role's degrees. So pairs of them
come in the order of a bound: as though all sequences and the largest micro-batches had room, and no weights
were moved. The search ends when no remaining pair can be among those requested, or after a maximal number of
pairs.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rljob_api.spec.engines import Placement
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.memory import MemoryPlan
from rljob_plan.search.candidates import Placements
from rljob_plan.search.degrees import Degrees
from rljob_plan.search.estimates import Estimator, LayoutEstimate

MOST_PAIRS = 2000
MOST_CHECKED = 64
"""Layouts whose reshard is planned, which takes longer than everything else: up to a quarter of a second."""
MOST_UNTIL_ONE_FITS = 256
"""Layouts whose reshard is planned while none of them fits."""

_Degrees = tuple[Placement, UpdateDegrees, RolloutDegrees]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A layout with the job that has it. job: as a user would write it. memory: of its plan."""

    estimate: LayoutEstimate
    job: RLJob
    memory: MemoryPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLayout:
    """The job's own layout. problems: why it does not fit. rank: by time among the layouts that fit, from 1;
    None if it does not fit. Layouts that are not proposed count even if their reshard is not planned.
    at_least: the search ended before all faster ones were examined."""

    estimate: LayoutEstimate
    memory: MemoryPlan
    problems: list[Problem]
    rank: int | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCounts:
    """Counts of layouts: degrees of both roles, whatever their micro-batches. tried: all of them. illegal:
    refused by the rules. too_large: one role alone needs more memory than there is. looked_at: examined in
    the order of their bound. no_room: examined and fit with no setting, or not with their reshard. unchecked:
    not planned because there were too many. ended: the search ended before all that could be faster were
    examined or checked."""

    tried: int
    illegal: int
    too_large: int
    looked_at: int
    no_room: int
    unchecked: int
    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The result of a search. proposals: the fastest first. fitting: number of examined layouts that fit."""

    job: RLJob
    proposals: tuple[Proposal, ...]
    fitting: int
    job_layout: JobLayout
    counts: SearchCounts


def rank(
    estimates: Estimator, *, top: int, placements: Placements = "job", most: int = MOST_PAIRS
) -> Ranking:
    """Return the `top` fastest layouts, including the job's own among those examined. most: pairs of
    degrees."""
    roles, job_layout = _roles(estimates, placements), _job_layout(estimates)
    pairs = _Pairs(
        estimates, top=top, most=most, job_layout=None if job_layout.problems else job_layout
    )
    pairs.examine(roles)
    fitting = pairs.fitting
    counts = SearchCounts(
        tried=sum(role.tried for role in roles),
        illegal=sum(role.illegal for role in roles),
        too_large=sum(role.too_large for role in roles),
        looked_at=pairs.looked_at,
        no_room=pairs.looked_at - len(fitting),
        unchecked=pairs.unchecked,
        ended=pairs.ended or pairs.gave_up,
    )
    if not job_layout.problems:
        faster = sum(one.seconds < job_layout.estimate.seconds for one in fitting)
        job_layout = replace(job_layout, rank=1 + faster, at_least=pairs.ended)
    return Ranking(
        job=estimates.job,
        proposals=tuple(pairs.proposals),
        fitting=len(fitting),
        job_layout=job_layout,
        counts=counts,
    )


def first_that_fits(estimates: Estimator, *, placements: Placements, most: int) -> Proposal | None:
    """Return a layout that fits, among the `most` with the lowest bounds. The job's own may be illegal."""
    pairs = _Pairs(estimates, top=1, most=most, job_layout=None)
    pairs.examine(_roles(estimates, placements))
    return pairs.proposals[0] if pairs.proposals else None


def _roles(estimates: Estimator, placements: Placements) -> list[Degrees]:
    requested = estimates.space.placements(placements)
    return [Degrees(estimates, placement) for placement in requested]


class _Pairs:
    """The pairs examined so far, and the fastest that fit with their reshard. job_layout: the job's layout if
    it fits, whose rank is needed too."""

    def __init__(
        self, estimates: Estimator, *, top: int, most: int, job_layout: JobLayout | None
    ) -> None:
        self.looked_at, self.ended, self.gave_up = 0, False, False
        self._estimates, self._top, self._most, self._job_layout = estimates, top, most, job_layout
        self._fit: list[Proposal] = []
        self._waiting: list[
            tuple[float, int, LayoutEstimate]
        ] = []  # a heap of those not checked yet
        self._examined: set[_Degrees] = set()
        self._checked = 0

    @property
    def proposals(self) -> list[Proposal]:
        """Return the proposals, the fastest first."""
        return sorted(self._fit, key=lambda one: one.estimate.seconds)[: self._top]

    @property
    def fitting(self) -> list[LayoutEstimate]:
        """Return the examined layouts that fit; the reshard of some that are not proposed is not planned."""
        estimates = [one.estimate for one in self._fit]
        checked = set(map(_degrees, estimates))
        return estimates + [one for _, _, one in self._waiting if _degrees(one) not in checked]

    @property
    def unchecked(self) -> int:
        """Return the number of layouts still unchecked when the search gave up."""
        return len(self._waiting) if self.gave_up else 0

    def examine(self, roles: Sequence[Degrees]) -> None:
        """Examine pairs until no remaining pair matters, or the limit is reached."""
        job_seconds = self._job_layout.estimate.seconds if self._job_layout else 0.0
        for bound, degrees, update, rollout in _in_order(roles):
            self._check(before=bound)
            if self._enough and bound > job_seconds:
                break
            if self.looked_at == self._most:
                self.ended = True
                break
            self._take(degrees.fastest(update, rollout))
        self._check(before=math.inf)
        self.gave_up = self._enough and len(self._fit) < self._top
        if self._job_layout:
            self._add(self._job_layout)

    @property
    def _enough(self) -> bool:
        most = MOST_CHECKED if self._fit or self._job_layout else MOST_UNTIL_ONE_FITS
        return len(self._fit) == self._top or self._checked >= most

    def _take(self, one: LayoutEstimate | None) -> None:
        self.looked_at += 1
        if one is not None:
            self._examined.add(_degrees(one))
            heapq.heappush(self._waiting, (one.seconds, self.looked_at, one))

    def _check(self, *, before: float) -> None:
        """Plan the reshard of those that are faster than all that remain."""
        while self._waiting and self._waiting[0][0] < before and not self._enough:
            one = heapq.heappop(self._waiting)[2]
            self._checked += 1
            memory = self._estimates.memory(one.layout, with_reshard=True)
            if not self._estimates.memory_problems(one.layout, memory):
                self._propose(one, memory)

    def _propose(self, one: LayoutEstimate, memory: MemoryPlan) -> None:
        job = self._estimates.space.job_of(one.layout)
        self._fit.append(Proposal(estimate=one, job=job, memory=memory))

    def _add(self, job_layout: JobLayout) -> None:
        """Add the job's own layout, unless its degrees already fit with a faster setting."""
        job_degrees = _degrees(job_layout.estimate)
        self.looked_at += job_degrees not in self._examined
        candidates = [one.estimate for one in self._fit] if self.gave_up else self.fitting
        if job_degrees not in set(map(_degrees, candidates)):
            self._propose(job_layout.estimate, job_layout.memory)


def _degrees(estimate: LayoutEstimate) -> _Degrees:
    layout = estimate.layout
    return layout.placement, layout.update, layout.rollout


def _in_order(roles: Sequence[Degrees]) -> Iterator[tuple[float, Degrees, int, int]]:
    """Yield pairs of degrees by their bounds: (bound, placement, index of the update's degrees, of the
    rollout's)."""
    heap: list[tuple[float, int, int, int]] = []

    def push(role: int, update: int, rollout: int) -> None:
        """Add a pair of degrees to the heap if both exist."""
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


def _job_layout(estimates: Estimator) -> JobLayout:
    layout = estimates.space.job_layout
    memory = estimates.memory(layout, with_reshard=True)
    return JobLayout(
        estimate=estimates.estimate(layout, memory),
        memory=memory,
        problems=estimates.memory_problems(layout, memory),
    )
