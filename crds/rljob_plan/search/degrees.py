"""Rank the degrees of both roles on the devices of one placement by a lower bound of their time.

Called by `ranking`, which examines pairs of them.
"""

from dataclasses import replace
from functools import cached_property

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Placement
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.memory import least_to_generate, least_to_train
from rljob_plan.performance import (
    constant_seconds,
    generating_parts,
    swap_seconds,
    training_parts,
)
from rljob_plan.search.candidates import CandidateLayout, TriedDegrees, UpdateSetting
from rljob_plan.search.estimates import Estimator, LayoutEstimate

ALMOST = 1 - 1e-9
"""A sum in another order may be smaller by rounding; a bound must not be larger."""
LEAST = 3
"""Degrees of each role that are reported if nothing fits."""


class Degrees:
    """Degrees of both roles on one placement. updates, rollouts: with a lower bound of their seconds,
    ascending."""

    def __init__(self, estimates: Estimator, placement: Placement) -> None:
        self._estimates, self._placement = estimates, placement
        self._tried_updates: TriedDegrees = estimates.space.updates(placement)
        self._tried_rollouts: TriedDegrees = estimates.space.rollouts(placement)
        self._settings: dict[UpdateDegrees, list[tuple[float, UpdateSetting]]] = {}
        self._refused = 0

    @property
    def tried(self) -> int:
        """Return the number of pairs of degrees."""
        return self._tried_updates.tried * self._tried_rollouts.tried

    @property
    def illegal(self) -> int:
        """Return the number of pairs that the rules refuse."""
        return self.tried - self._legal + self._refused

    @property
    def too_large(self) -> int:
        """Return the number of legal pairs of which one role alone needs more memory than there is."""
        return self._legal - len(self.updates) * len(self.rollouts)

    @property
    def _legal(self) -> int:
        return len(self._tried_updates.legal) * len(self._tried_rollouts.legal)

    @cached_property
    def updates(self) -> list[tuple[float, UpdateDegrees]]:
        """Return the degrees of the devices that train."""
        fitting = [
            (self._training_bound(degrees), degrees)
            for degrees in self._tried_updates.legal
            if self._can_train(degrees)
        ]
        return sorted(fitting, key=lambda one: one[0])

    @cached_property
    def rollouts(self) -> list[tuple[float, RolloutDegrees]]:
        """Return the degrees of the devices that generate."""
        fitting = []
        for degrees in self._tried_rollouts.legal:
            spec = self._spec(rollout=degrees)
            if self._limit is None or least_to_generate(spec, self._shape) <= self._limit:
                seconds = sum(generating_parts(spec, self._shape, *self._estimates.rates).values())
                fitting.append((seconds * ALMOST, degrees))
        return sorted(fitting, key=lambda one: one[0])

    def least_update(self) -> list[UpdateDegrees]:
        """Return the legal degrees with which a training device needs least, even if that is more than it
        has."""

        def needed_bytes(degrees: UpdateDegrees) -> int:
            """Return the bytes that a training device needs with these degrees and their leanest setting."""
            setting = self._estimates.space.leanest(degrees)[-1]
            return least_to_train(self._spec(update=degrees, setting=setting), self._shape)

        return sorted(self._tried_updates.legal, key=needed_bytes)[:LEAST]

    def least_rollout(self) -> list[RolloutDegrees]:
        """Return the legal degrees with which a generating device needs least, even if that is more than it
        has."""

        def needed_bytes(degrees: RolloutDegrees) -> int:
            """Return the bytes that a generating device needs with these degrees."""
            return least_to_generate(self._spec(rollout=degrees), self._shape)

        return sorted(self._tried_rollouts.legal, key=needed_bytes)[:LEAST]

    def bound(self, update: int, rollout: int) -> float:
        """Return a lower bound of the seconds of a step with the pair."""
        return self._step_seconds(self.updates[update][0], self.rollouts[rollout][0])

    def fastest(self, update: int, rollout: int) -> LayoutEstimate | None:
        """Return the pair with the setting that makes it fastest, or None if no setting fits."""
        degrees, (least, generating) = self.updates[update][1], self.rollouts[rollout]
        best: LayoutEstimate | None = None
        for seconds, setting in self._by_time(degrees):
            if best is not None and self._step_seconds(seconds, least) >= best.seconds:
                break
            fitting = [
                (self._estimates.estimate(layout, memory), memory)
                for layout in self._with_redundancies(degrees, generating, setting)
                if not self._estimates.memory_problems(
                    layout, memory := self._estimates.memory(layout)
                )
            ]
            if not fitting:
                continue
            estimate, memory = min(fitting, key=lambda one: one[0].seconds)
            if best is None:
                if self._estimates.space.problems(estimate.layout):
                    self._refused += 1
                    return None
                best = estimate
            elif estimate.seconds < best.seconds:
                best = estimate
            if memory.kv_cache.room == memory.kv_cache.requested:
                break
        return best

    def _with_redundancies(
        self, update: UpdateDegrees, rollout: RolloutDegrees, setting: UpdateSetting
    ) -> list[CandidateLayout]:
        """Return the layouts of a setting with the job's redundancy, or with all allowed kinds if failures
        are weighed."""
        kinds = [setting.redundancy]
        if self._estimates.rates[0].failures_per_day:
            kinds = self._estimates.space.redundancies(self._placement, update)
        return [self._layout(update, rollout, replace(setting, redundancy=kind)) for kind in kinds]

    def _step_seconds(self, training: float, generating: float) -> float:
        """Return the seconds of a step. Separated roles may work at the same time."""
        overlap = (
            self._placement.mode == "separated" and self._estimates.job.spec.flow.mode != "sync"
        )
        return max(training, generating) if overlap else training + generating

    def _by_time(self, degrees: UpdateDegrees) -> list[tuple[float, UpdateSetting]]:
        """Return the settings that leave room to train, by the time that they take."""
        if degrees not in self._settings:
            fitting = []
            for setting in self._estimates.space.settings(degrees):
                spec = self._spec(update=degrees, setting=setting)
                if self._limit is not None and least_to_train(spec, self._shape) > self._limit:
                    continue
                fitting.append((self._training_seconds(degrees, setting), setting))
            self._settings[degrees] = sorted(fitting, key=lambda one: one[0])
        return self._settings[degrees]

    def _can_train(self, degrees: UpdateDegrees) -> bool:
        """Return whether a setting leaves room to train."""
        if self._limit is None:
            return True
        leanest = reversed(self._estimates.space.leanest(degrees))
        specs = (self._spec(update=degrees, setting=setting) for setting in leanest)
        return any(least_to_train(spec, self._shape) <= self._limit for spec in specs)

    def _training_bound(self, degrees: UpdateDegrees) -> float:
        """Return a lower bound: the time with the fewest micro-batches, and with the pipeline bubbles of the
        most."""
        space = self._estimates.space
        few, many = (
            self._spec(update=degrees, setting=replace(one, recompute="none", offload="none"))
            for one in (_fewest(space.settings(degrees)), space.leanest(degrees)[-1])
        )
        shape, rates = self._shape, self._estimates.rates
        parts = training_parts(few, shape, *rates, others=self._estimates.others)
        data = degrees.data or 1
        parts["bubbles"] *= few.batch.passes(data) / max(
            one.batch.passes(data) for one in (few, many)
        )
        constant = constant_seconds(few, shape, rates) + swap_seconds(few, shape, rates[0])
        return (sum(parts.values()) + constant) * ALMOST

    def _training_seconds(self, degrees: UpdateDegrees, setting: UpdateSetting) -> float:
        spec, rates = self._spec(update=degrees, setting=setting), self._estimates.rates
        parts = training_parts(spec, self._shape, *rates, others=self._estimates.others)
        constant = constant_seconds(spec, self._shape, rates) + swap_seconds(
            spec, self._shape, rates[0]
        )
        return (sum(parts.values()) + constant) * ALMOST

    def _spec(
        self,
        *,
        update: UpdateDegrees | None = None,
        rollout: RolloutDegrees | None = None,
        setting: UpdateSetting | None = None,
    ) -> ResolvedSpec:
        """Return the resolved spec. Arguments that are not given are the job's own, and do not affect the
        result."""
        job_layout = self._estimates.space.job_layout
        layout = self._layout(
            update or job_layout.update,
            rollout or job_layout.rollout,
            setting or job_layout.setting,
        )
        return self._estimates.spec_of(layout)

    def _layout(
        self, update: UpdateDegrees, rollout: RolloutDegrees, setting: UpdateSetting
    ) -> CandidateLayout:
        return CandidateLayout(
            placement=self._placement, update=update, rollout=rollout, setting=setting
        )

    @property
    def _shape(self) -> Shape:
        return self._estimates.shape

    @cached_property
    def _limit(self) -> int | None:
        memory = self._spec().accelerator.memory
        return parse_quantity(memory) if memory else None


def _fewest(settings: list[UpdateSetting]) -> UpdateSetting:
    """Return the setting with the fewest micro-batches."""
    return max(settings, key=lambda one: one.micro_batch_size or 0)
