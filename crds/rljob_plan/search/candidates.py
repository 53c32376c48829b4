"""Which layouts there are on a job's devices, and which of them its rules and its model allow.

Called by `ranking`. Numbers are tried, and the contract's own rules say what is legal: nothing of them is
repeated here. What is legal depends on either role alone, so both are listed apart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal

from rljob_api.check.layout_rules import (
    placement_rule,
    redundancy_rule,
    rollout_degrees_rule,
    rollout_share_rule,
    update_degrees_rule,
    update_share_rule,
)
from rljob_api.check.load import rule_problems
from rljob_api.check.rules import divisors
from rljob_api.check.run_rules import refusals
from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Placement, Recompute, Redundancy
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees, roles, total_devices
from rljob_api.topology.resolved import resolve

Placements = Literal["job", "colocated", "separated", "any"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "full")
REDUNDANCIES: tuple[Redundancy, ...] = ("none", "peer")
"""`host` copies do not outlive a pod, which fails with its device."""
OFFLOADS: tuple[Literal["none", "optimizer"], ...] = ("none", "optimizer")
CHUNKS = (1, 2)
"""Virtual pipelines that are tried, beside the job's own."""
SPLITS = 8
"""Separated devices are shared out by so many parts of them."""
MOST_SIZES = 5
"""Micro-batches of each kind that are tried for a set of degrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Of a role: what is legal, and how many were tried."""

    legal: tuple[Any, ...]
    tried: int

    @property
    def illegal(self) -> int:
        """How many the rules refuse."""
        return self.tried - len(self.legal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the update's degrees are used. micro_batch_size, micro_batch_tokens: one of them."""

    micro_batch_size: int | None
    micro_batch_tokens: int | None
    recompute: Recompute
    offload: Literal["none", "optimizer"]
    redundancy: Redundancy


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout of a job."""

    placement: Placement
    update: UpdateDegrees
    rollout: RolloutDegrees
    setting: Setting


class Space:
    """Layouts of one job. job: as written, passed the rules. others: shapes of models beside the policy."""

    def __init__(self, job: RLJob, shape: Shape, others: Mapping[str, Shape]) -> None:
        self._job, self._shape, self._others = job, shape, others
        self._settings: dict[int, list[Setting]] = {}
        self._refused = {problem.path for problem in refusals(job, shape)}

    @cached_property
    def own(self) -> Layout:
        """The job's."""
        spec, batch = resolve(self._job).spec, self._job.spec.batch
        size = None if batch.micro_batch_tokens else spec.batch.micro_batch_size
        setting = Setting(
            micro_batch_size=size,
            micro_batch_tokens=batch.micro_batch_tokens,
            recompute=spec.update.recompute,
            offload=spec.update.offload,
            redundancy=spec.update.redundancy,
        )
        return Layout(
            placement=self._job.spec.placement,
            update=spec.update.parallelism,
            rollout=spec.rollout.parallelism,
            setting=setting,
        )

    def placements(self, asked: Placements) -> list[Placement]:
        """Who may have the devices: as the job says, and as is asked for besides."""
        own = self._job.spec.placement
        found = [own] if asked in ("job", own.mode, "any") else []
        if asked in ("colocated", "any"):
            found.append(Placement())
        if asked in ("separated", "any"):
            total = total_devices(own, self._job.spec.accelerator)
            shares = sorted({total * part // SPLITS for part in range(1, SPLITS)} - {0})
            found += [
                Placement(mode="separated", update_devices=share, rollout_devices=total - share)
                for share in shares
                if share < total
            ]
        return list(dict.fromkeys(found))

    def updates(self, placement: Placement) -> Tried:
        """Degrees of the devices that train. A family with another expert degree, chunks or ZeRO is not
        looked into where its simplest member is refused: these only add to what the rules ask."""
        devices = roles(placement, self._job.spec.accelerator).update
        legal: list[UpdateDegrees] = []
        tried = 0
        for simplest in _update_families(devices):
            family = list(self._family(simplest))
            tried += len(family)
            if self._update_allowed(placement, simplest):
                legal += [
                    one for one in family if one == simplest or self._update_allowed(placement, one)
                ]
        return Tried(legal=tuple(legal), tried=tried)

    def rollouts(self, placement: Placement) -> Tried:
        """Degrees of the devices that generate."""
        own = resolve(self._job).spec.rollout.parallelism
        if self._job.spec.has_pairs:  # nothing is generated
            return Tried(legal=(own,), tried=1)
        devices = roles(placement, self._job.spec.accelerator).rollout
        found = [
            RolloutDegrees(
                data=devices // (tensor * pipeline), tensor=tensor, pipeline=pipeline, expert=expert
            )
            for tensor, pipeline in product(divisors(devices), repeat=2)
            if devices % (tensor * pipeline) == 0
            for expert in self._experts()
        ]
        legal = [one for one in found if self._rollout_allowed(placement, one)]
        return Tried(legal=tuple(legal), tried=len(found))

    def settings(self, update: UpdateDegrees) -> list[Setting]:
        """How degrees can be used: the job's own micro-batches, then the largest first."""
        if update.data not in self._settings:
            self._settings[update.data] = self._of_replicas(update.data)
        return self._settings[update.data]

    def redundancies(self, placement: Placement, update: UpdateDegrees) -> list[Redundancy]:
        """What may hold second copies with these degrees, where failures are weighed."""
        spec = self._job.spec.model_copy(update={"placement": placement})
        found = []
        for kind in REDUNDANCIES:
            used = {"parallelism": update, "redundancy": kind}
            asked = spec.model_copy(update={"update": spec.update.model_copy(update=used)})
            if not any(redundancy_rule(asked)):
                found.append(kind)
        return found

    def leanest(self, update: UpdateDegrees) -> list[Setting]:
        """Of the settings, those with the smallest micro-batches; the last recomputes, and offloads where
        that runs."""
        settings = self.settings(update)
        tokens = list(map(self._tokens, settings))
        least = min(tokens)
        return [one for one, found in zip(settings, tokens, strict=True) if found == least]

    def _tokens(self, setting: Setting) -> int:
        """Of a pass at the longest lengths."""
        batch = self._job.spec.batch
        group = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length
        return setting.micro_batch_tokens or group * (setting.micro_batch_size or 1)

    def _of_replicas(self, data: int) -> list[Setting]:
        batch, own = self._job.spec.batch, self.own.setting
        prompts = (batch.mini_batch_size or batch.global_batch_size) // data
        sizes = _some(sorted(divisors(prompts), reverse=True))
        longest = batch.max_prompt_length + batch.max_response_length
        group = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length
        tokens = _some([longest * 2**i for i in range(24, -1, -1) if longest * 2**i < group])
        micro: list[tuple[int | None, int | None]] = [(size, None) for size in sizes]
        micro += [(None, limit) for limit in tokens]
        mine = (own.micro_batch_size, own.micro_batch_tokens)
        if mine[0] is None or (mine[0] and prompts % mine[0] == 0):
            micro = [mine, *(one for one in micro if one != mine)]
        return [
            Setting(
                micro_batch_size=size,
                micro_batch_tokens=limit,
                recompute=again,
                offload=place,
                redundancy=own.redundancy,
            )
            for size, limit in micro
            for again, place in product(RECOMPUTES, OFFLOADS)
            if self._runs("update", {"offload": place})
        ]

    def job_of(self, layout: Layout) -> RLJob:
        """The job with another layout, as a user would write it."""
        return self._job.model_copy(update={"spec": self._spec_of(layout)})

    def problems(self, layout: Layout) -> list[Problem]:
        """What all rules say of a layout, and what could not be run that the job itself does not ask for."""
        job = self.job_of(layout)
        found = rule_problems(job.spec) or shape_problems(job.spec, self._shape, self._others)
        return found or [one for one in refusals(job, self._shape) if one.path not in self._refused]

    def _spec_of(self, layout: Layout) -> RLJobSpec:
        spec, setting = self._job.spec, layout.setting
        micro = {
            "micro_batch_size": setting.micro_batch_size,
            "micro_batch_tokens": setting.micro_batch_tokens,
        }
        used = {
            "parallelism": layout.update,
            "recompute": setting.recompute,
            "offload": setting.offload,
            "redundancy": setting.redundancy,
        }
        return spec.model_copy(
            update={
                "placement": layout.placement,
                "batch": spec.batch.model_copy(update=micro),
                "update": spec.update.model_copy(update=used),
                "rollout": spec.rollout.model_copy(update={"parallelism": layout.rollout}),
            }
        )

    def _update_allowed(self, placement: Placement, degrees: UpdateDegrees) -> bool:
        """Of these degrees, with micro-batches of one prompt, and whatever rollout."""
        spec = self._job.spec
        batch = spec.batch.model_copy(update={"micro_batch_size": None})
        update = spec.update.model_copy(update={"parallelism": degrees})
        asked = spec.model_copy(update={"placement": placement, "batch": batch, "update": update})
        rules = (placement_rule, update_degrees_rule, update_share_rule)
        return self._allowed(asked, rules, "update") and self._runs(
            "update", {"parallelism": degrees}
        )

    def _rollout_allowed(self, placement: Placement, degrees: RolloutDegrees) -> bool:
        rollout = self._job.spec.rollout.model_copy(update={"parallelism": degrees})
        asked = self._job.spec.model_copy(update={"placement": placement, "rollout": rollout})
        rules = (rollout_degrees_rule, rollout_share_rule)
        return self._allowed(asked, rules, "rollout") and self._runs(
            "rollout", {"parallelism": degrees}
        )

    def _runs(self, role: Literal["update", "rollout"], changes: Mapping[str, object]) -> bool:
        """Whether a role with these changes is not refused more than the job is."""
        spec = self._job.spec
        changed = getattr(spec, role).model_copy(update=changes)
        job = self._job.model_copy(update={"spec": spec.model_copy(update={role: changed})})
        path = f"spec.{role}."
        return not any(
            one.path.startswith(path) and one.path not in self._refused
            for one in refusals(job, self._shape)
        )

    def _allowed(
        self,
        spec: RLJobSpec,
        rules: Iterable[Callable[[RLJobSpec], Iterable[Problem]]],
        role: Literal["update", "rollout"],
    ) -> bool:
        if any(problem for rule in rules for problem in rule(spec)):
            return False
        path = f"spec.{role}."
        found = shape_problems(spec, self._shape, self._others)
        return not any(problem.path.startswith(path) for problem in found)

    def _family(self, simplest: UpdateDegrees) -> Iterator[UpdateDegrees]:
        """What differs from it in experts, chunks and ZeRO."""
        own = self._job.spec.update.parallelism.virtual_pipeline
        chunks = sorted({*CHUNKS, own}) if simplest.pipeline > 1 else [1]
        zeros = (0, 1, 2, 3) if simplest.data * simplest.context > 1 else (0,)
        for expert, virtual, zero in product(self._experts(), chunks, zeros):
            yield simplest.model_copy(
                update={"expert": expert, "virtual_pipeline": virtual, "zero": zero}
            )

    def _experts(self) -> list[int]:
        experts = self._shape.experts
        return divisors(experts.count) if experts else [1]


def _update_families(devices: int) -> Iterator[UpdateDegrees]:
    """Products of degrees that are the number of devices; one expert rank, one chunk, no ZeRO."""
    for tensor, pipeline, context in product(divisors(devices), repeat=3):
        if devices % (tensor * pipeline * context):
            continue
        data = devices // (tensor * pipeline * context)
        algorithms: tuple[Literal["ulysses", "ring"], ...] = ("ulysses", "ring")
        for algorithm in algorithms if context > 1 else algorithms[:1]:
            yield UpdateDegrees(
                data=data,
                tensor=tensor,
                pipeline=pipeline,
                context=context,
                context_algorithm=algorithm,
            )


def _some(numbers: list[int]) -> list[int]:
    """At most MOST_SIZES of them, with the first and the last."""
    if len(numbers) <= MOST_SIZES:
        return numbers
    last = len(numbers) - 1
    places = {round(last * i / (MOST_SIZES - 1)) for i in range(MOST_SIZES)}
    return [numbers[place] for place in sorted(places)]
