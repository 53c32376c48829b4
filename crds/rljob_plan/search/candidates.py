"""List the layouts on a job's devices that its rules and its model allow.

Called by `ranking`. Numbers are tried, and the API's own rules decide what is legal; no rule is repeated
here. Each role is legal on its own terms, so the roles are listed separately.
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
"""Virtual pipelines that are tried, besides the job's own."""
SPLITS = 8
"""Separated devices are shared out in multiples of this fraction: an eighth of them."""
MOST_SIZES = 5
"""Micro-batch sizes of each kind that are tried for a set of degrees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedDegrees:
    """Degrees of a role: the legal ones, and how many were tried."""

    legal: tuple[Any, ...]
    tried: int

    @property
    def illegal(self) -> int:
        """Return how many the rules refuse."""
        return self.tried - len(self.legal)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetting:
    """How the update's degrees are used. micro_batch_size, micro_batch_tokens: one of them is set."""

    micro_batch_size: int | None
    micro_batch_tokens: int | None
    recompute: Recompute
    offload: Literal["none", "optimizer"]
    redundancy: Redundancy


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateLayout:
    """A candidate layout of a job."""

    placement: Placement
    update: UpdateDegrees
    rollout: RolloutDegrees
    setting: UpdateSetting


class Space:
    """Layouts of one job. job: as written, passed the rules. others: shapes of models besides the policy."""

    def __init__(self, job: RLJob, shape: Shape, others: Mapping[str, Shape]) -> None:
        self._job, self._shape, self._others = job, shape, others
        self._settings: dict[int, list[UpdateSetting]] = {}
        self._refused = {problem.path for problem in refusals(job, shape)}

    @cached_property
    def job_layout(self) -> CandidateLayout:
        """Return the job's own layout."""
        spec, batch = resolve(self._job).spec, self._job.spec.batch
        size = None if batch.micro_batch_tokens else spec.batch.micro_batch_size
        setting = UpdateSetting(
            micro_batch_size=size,
            micro_batch_tokens=batch.micro_batch_tokens,
            recompute=spec.update.recompute,
            offload=spec.update.offload,
            redundancy=spec.update.redundancy,
        )
        return CandidateLayout(
            placement=self._job.spec.placement,
            update=spec.update.parallelism,
            rollout=spec.rollout.parallelism,
            setting=setting,
        )

    def placements(self, request: Placements) -> list[Placement]:
        """Return the placements of devices to try: the job's own, and those that are requested."""
        job_placement = self._job.spec.placement
        options = [job_placement] if request in ("job", job_placement.mode, "any") else []
        if request in ("colocated", "any"):
            options.append(Placement())
        if request in ("separated", "any"):
            total = total_devices(job_placement, self._job.spec.accelerator)
            shares = sorted({total * eighth // SPLITS for eighth in range(1, SPLITS)} - {0})
            options += [
                Placement(mode="separated", update_devices=share, rollout_devices=total - share)
                for share in shares
                if share < total
            ]
        return list(dict.fromkeys(options))

    def updates(self, placement: Placement) -> TriedDegrees:
        """Return the degrees of the devices that train. A family varies expert degree, chunks and ZeRO, which
        only add constraints. So it is skipped if the rules refuse its simplest member."""
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
        return TriedDegrees(legal=tuple(legal), tried=tried)

    def rollouts(self, placement: Placement) -> TriedDegrees:
        """Return the degrees of the devices that generate."""
        job_degrees = resolve(self._job).spec.rollout.parallelism
        if self._job.spec.has_pairs:  # nothing is generated
            return TriedDegrees(legal=(job_degrees,), tried=1)
        devices = roles(placement, self._job.spec.accelerator).rollout
        options = [
            RolloutDegrees(
                data=devices // (tensor * pipeline), tensor=tensor, pipeline=pipeline, expert=expert
            )
            for tensor, pipeline in product(divisors(devices), repeat=2)
            if devices % (tensor * pipeline) == 0
            for expert in self._experts()
        ]
        legal = [one for one in options if self._rollout_allowed(placement, one)]
        return TriedDegrees(legal=tuple(legal), tried=len(options))

    def settings(self, update: UpdateDegrees) -> list[UpdateSetting]:
        """Return how degrees can be used: the job's own micro-batches, then the largest first."""
        if update.data not in self._settings:
            self._settings[update.data] = self._settings_of_replicas(update.data)
        return self._settings[update.data]

    def redundancies(self, placement: Placement, update: UpdateDegrees) -> list[Redundancy]:
        """Return the kinds of second copies that the rules allow with these degrees, if failures are
        weighed."""
        spec = self._job.spec.model_copy(update={"placement": placement})
        allowed = []
        for kind in REDUNDANCIES:
            used = {"parallelism": update, "redundancy": kind}
            candidate = spec.model_copy(update={"update": spec.update.model_copy(update=used)})
            if not any(redundancy_rule(candidate)):
                allowed.append(kind)
        return allowed

    def leanest(self, update: UpdateDegrees) -> list[UpdateSetting]:
        """Return the settings with the smallest micro-batches. The last recomputes, and offloads if that
        runs."""
        settings = self.settings(update)
        tokens = list(map(self._tokens, settings))
        least = min(tokens)
        return [one for one, count in zip(settings, tokens, strict=True) if count == least]

    def _tokens(self, setting: UpdateSetting) -> int:
        """Return the tokens of a pass at the longest lengths."""
        batch = self._job.spec.batch
        group = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length
        return setting.micro_batch_tokens or group * (setting.micro_batch_size or 1)

    def _settings_of_replicas(self, data: int) -> list[UpdateSetting]:
        batch, job_setting = self._job.spec.batch, self.job_layout.setting
        prompts = (batch.mini_batch_size or batch.global_batch_size) // data
        sizes = _some(sorted(divisors(prompts), reverse=True))
        longest = batch.max_prompt_length + batch.max_response_length
        group = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length
        tokens = _some([longest * 2**i for i in range(24, -1, -1) if longest * 2**i < group])
        micro: list[tuple[int | None, int | None]] = [(size, None) for size in sizes]
        micro += [(None, limit) for limit in tokens]
        job_micro = (job_setting.micro_batch_size, job_setting.micro_batch_tokens)
        if job_micro[0] is None or (job_micro[0] and prompts % job_micro[0] == 0):
            micro = [job_micro, *(one for one in micro if one != job_micro)]
        return [
            UpdateSetting(
                micro_batch_size=size,
                micro_batch_tokens=limit,
                recompute=recompute,
                offload=offload,
                redundancy=job_setting.redundancy,
            )
            for size, limit in micro
            for recompute, offload in product(RECOMPUTES, OFFLOADS)
            if self._is_runnable("update", {"offload": offload})
        ]

    def job_of(self, layout: CandidateLayout) -> RLJob:
        """Return the job with another layout, as a user would write it."""
        return self._job.model_copy(update={"spec": self._spec_of(layout)})

    def problems(self, layout: CandidateLayout) -> list[Problem]:
        """Return the problems of a layout by all rules, and refusals at run time that the job itself does not
        have."""
        job = self.job_of(layout)
        problems = rule_problems(job.spec) or shape_problems(job.spec, self._shape, self._others)
        return problems or [
            one for one in refusals(job, self._shape) if one.path not in self._refused
        ]

    def _spec_of(self, layout: CandidateLayout) -> RLJobSpec:
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
        """Return whether the rules allow these degrees, with micro-batches of one prompt, and whatever
        rollout."""
        spec = self._job.spec
        batch = spec.batch.model_copy(update={"micro_batch_size": None})
        update = spec.update.model_copy(update={"parallelism": degrees})
        candidate = spec.model_copy(
            update={"placement": placement, "batch": batch, "update": update}
        )
        rules = (placement_rule, update_degrees_rule, update_share_rule)
        return self._allowed(candidate, rules, "update") and self._is_runnable(
            "update", {"parallelism": degrees}
        )

    def _rollout_allowed(self, placement: Placement, degrees: RolloutDegrees) -> bool:
        rollout = self._job.spec.rollout.model_copy(update={"parallelism": degrees})
        candidate = self._job.spec.model_copy(update={"placement": placement, "rollout": rollout})
        rules = (rollout_degrees_rule, rollout_share_rule)
        return self._allowed(candidate, rules, "rollout") and self._is_runnable(
            "rollout", {"parallelism": degrees}
        )

    def _is_runnable(
        self, role: Literal["update", "rollout"], changes: Mapping[str, object]
    ) -> bool:
        """Return whether a role with these changes is not refused more than the job is."""
        spec = self._job.spec
        section = getattr(spec, role).model_copy(update=changes)
        job = self._job.model_copy(update={"spec": spec.model_copy(update={role: section})})
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
        problems = shape_problems(spec, self._shape, self._others)
        return not any(problem.path.startswith(path) for problem in problems)

    def _family(self, simplest: UpdateDegrees) -> Iterator[UpdateDegrees]:
        """Yield degrees that differ from the simplest member in experts, chunks and ZeRO."""
        job_chunks = self._job.spec.update.parallelism.virtual_pipeline
        chunks = sorted({*CHUNKS, job_chunks}) if simplest.pipeline > 1 else [1]
        zeros = (0, 1, 2, 3) if simplest.data * simplest.context > 1 else (0,)
        for expert, virtual, zero in product(self._experts(), chunks, zeros):
            yield simplest.model_copy(
                update={"expert": expert, "virtual_pipeline": virtual, "zero": zero}
            )

    def _experts(self) -> list[int]:
        experts = self._shape.experts
        return divisors(experts.count) if experts else [1]


def _update_families(devices: int) -> Iterator[UpdateDegrees]:
    """Yield products of degrees that equal the number of devices, with one expert rank, one chunk and no
    ZeRO."""
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
    """Return at most MOST_SIZES of the numbers, including the first and the last."""
    if len(numbers) <= MOST_SIZES:
        return numbers
    last = len(numbers) - 1
    indices = {round(last * i / (MOST_SIZES - 1)) for i in range(MOST_SIZES)}
    return [numbers[index] for index in sorted(indices)]
