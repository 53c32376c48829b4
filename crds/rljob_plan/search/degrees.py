"""Degrees of both roles on the devices of one placement, each role's by the least time that they can take.

Called by `ranking`, which looks at pairs of them.
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
from rljob_plan.search.candidates import Layout, Setting, Tried
from rljob_plan.search.estimates import Estimates, Found

ALMOST = 1 - 1e-9
"""A sum in another order may be smaller by rounding; a bound must not be larger."""
LEAST = 3
"""Degrees of each role that are told of where nothing fits."""


class Degrees:
    """updates, rollouts: with what they take at best, ascending."""

    def __init__(self, estimates: Estimates, placement: Placement) -> None:
        self._estimates, self._placement = estimates, placement
        self._tried_updates: Tried = estimates.space.updates(placement)
        self._tried_rollouts: Tried = estimates.space.rollouts(placement)
        self._settings: dict[UpdateDegrees, list[tuple[float, Setting]]] = {}
        self._refused = 0

    @property
    def tried(self) -> int:
        """Pairs of degrees."""
        return self._tried_updates.tried * self._tried_rollouts.tried

    @property
    def illegal(self) -> int:
        """Of them, refused by rules."""
        return self.tried - self._legal + self._refused

    @property
    def too_large(self) -> int:
        """Of them, legal, but one role alone takes more memory than there is."""
        return self._legal - len(self.updates) * len(self.rollouts)

    @property
    def _legal(self) -> int:
        return len(self._tried_updates.legal) * len(self._tried_rollouts.legal)

    @cached_property
    def updates(self) -> list[tuple[float, UpdateDegrees]]:
        """Of the devices that train."""
        found = [
            (self._training_bound(degrees), degrees)
            for degrees in self._tried_updates.legal
            if self._trains(degrees)
        ]
        return sorted(found, key=lambda one: one[0])

    @cached_property
    def rollouts(self) -> list[tuple[float, RolloutDegrees]]:
        """Of the devices that generate."""
        found = []
        for degrees in self._tried_rollouts.legal:
            spec = self._spec(rollout=degrees)
            if self._limit is None or least_to_generate(spec, self._shape) <= self._limit:
                seconds = sum(generating_parts(spec, self._shape, *self._estimates.rates).values())
                found.append((seconds * ALMOST, degrees))
        return sorted(found, key=lambda one: one[0])

    def least_update(self) -> list[UpdateDegrees]:
        """Legal degrees with which a device that trains needs least, whether it has as much or not."""

        def needs(degrees: UpdateDegrees) -> int:
            setting = self._estimates.space.leanest(degrees)[-1]
            return least_to_train(self._spec(update=degrees, setting=setting), self._shape)

        return sorted(self._tried_updates.legal, key=needs)[:LEAST]

    def least_rollout(self) -> list[RolloutDegrees]:
        """Likewise of the devices that generate."""

        def needs(degrees: RolloutDegrees) -> int:
            return least_to_generate(self._spec(rollout=degrees), self._shape)

        return sorted(self._tried_rollouts.legal, key=needs)[:LEAST]

    def bound(self, update: int, rollout: int) -> float:
        """Seconds that a step of the pair takes at least."""
        return self._joined(self.updates[update][0], self.rollouts[rollout][0])

    def fastest(self, update: int, rollout: int) -> Found | None:
        """The pair with the setting that makes it fastest; None where no setting fits."""
        degrees, (least, generating) = self.updates[update][1], self.rollouts[rollout]
        best: Found | None = None
        for seconds, setting in self._by_time(degrees):
            if best is not None and self._joined(seconds, least) >= best.seconds:
                break
            fit = [
                (self._estimates.found(layout, memory), memory)
                for layout in self._kept_safe(degrees, generating, setting)
                if not self._estimates.memory_problems(
                    layout, memory := self._estimates.memory(layout)
                )
            ]
            if not fit:
                continue
            found, memory = min(fit, key=lambda one: one[0].seconds)
            if best is None:
                if self._estimates.space.problems(found.layout):
                    self._refused += 1
                    return None
                best = found
            elif found.seconds < best.seconds:
                best = found
            if memory.kv_cache.room == memory.kv_cache.wanted:
                break
        return best

    def _kept_safe(
        self, update: UpdateDegrees, rollout: RolloutDegrees, setting: Setting
    ) -> list[Layout]:
        """The setting as the job copies what is trained, or where failures are weighed in all ways."""
        kinds = [setting.redundancy]
        if self._estimates.rates[0].failures_per_day:
            kinds = self._estimates.space.redundancies(self._placement, update)
        return [self._layout(update, rollout, replace(setting, redundancy=kind)) for kind in kinds]

    def _joined(self, training: float, generating: float) -> float:
        """Separated roles may work at the same time."""
        beside = (
            self._placement.mode == "separated" and self._estimates.job.spec.flow.mode != "sync"
        )
        return max(training, generating) if beside else training + generating

    def _by_time(self, degrees: UpdateDegrees) -> list[tuple[float, Setting]]:
        """Settings that leave room to train, by the time that they take."""
        if degrees not in self._settings:
            found = []
            for setting in self._estimates.space.settings(degrees):
                spec = self._spec(update=degrees, setting=setting)
                if self._limit is not None and least_to_train(spec, self._shape) > self._limit:
                    continue
                found.append((self._training_seconds(degrees, setting), setting))
            self._settings[degrees] = sorted(found, key=lambda one: one[0])
        return self._settings[degrees]

    def _trains(self, degrees: UpdateDegrees) -> bool:
        """Whether there is a setting that leaves room to train."""
        if self._limit is None:
            return True
        leanest = reversed(self._estimates.space.leanest(degrees))
        specs = (self._spec(update=degrees, setting=setting) for setting in leanest)
        return any(least_to_train(spec, self._shape) <= self._limit for spec in specs)

    def _training_bound(self, degrees: UpdateDegrees) -> float:
        """With the fewest micro-batches, and a pipeline that waits as it does with the most of them."""
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

    def _training_seconds(self, degrees: UpdateDegrees, setting: Setting) -> float:
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
        setting: Setting | None = None,
    ) -> ResolvedSpec:
        """Resolved; what is not given is the job's own, of which nothing is asked."""
        own = self._estimates.space.own
        layout = self._layout(update or own.update, rollout or own.rollout, setting or own.setting)
        return self._estimates.spec_of(layout)

    def _layout(self, update: UpdateDegrees, rollout: RolloutDegrees, setting: Setting) -> Layout:
        return Layout(placement=self._placement, update=update, rollout=rollout, setting=setting)

    @property
    def _shape(self) -> Shape:
        return self._estimates.shape

    @cached_property
    def _limit(self) -> int | None:
        memory = self._spec().accelerator.memory
        return parse_quantity(memory) if memory else None


def _fewest(settings: list[Setting]) -> Setting:
    """The setting with the fewest micro-batches."""
    return max(settings, key=lambda one: one.micro_batch_size or 0)
