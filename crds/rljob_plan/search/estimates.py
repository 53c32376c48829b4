"""Estimate time and memory of one layout of a job. Called by `degrees`, `ranking` and `remedies`."""

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Placement, Rollout
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import RolloutDegrees
from rljob_api.topology.resolved import ResolvedBatch, ResolvedSpec, resolve
from rljob_plan.host_memory import plan_host
from rljob_plan.machines import MachineRates, RateShares
from rljob_plan.memory import MemoryPlan, plan_memory
from rljob_plan.memory_rules import host_problems, memory_problems
from rljob_plan.performance import step_parts
from rljob_plan.search.candidates import CandidateLayout, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutEstimate:
    """A layout and the time of its step. parts: seconds, as `step_parts` names them."""

    layout: CandidateLayout
    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        """Return the seconds of a step."""
        return sum(self.parts.values())


class Estimator:
    """Estimates for the layouts of one job. job: as written, passed the rules. others: shapes of the models
    besides the policy."""

    def __init__(
        self,
        job: RLJob,
        shape: Shape,
        others: Mapping[str, Shape],
        rates: tuple[MachineRates, RateShares],
    ) -> None:
        self.job, self.shape, self.others, self.rates = job, shape, others, rates
        self.space = Space(job, shape, others)
        self._bases: dict[Placement, ResolvedSpec] = {}
        self._batches: dict[tuple[tuple[int, int | None], Placement], ResolvedBatch] = {}
        self._rollouts: dict[RolloutDegrees, Rollout] = {}

    def spec_of(self, layout: CandidateLayout) -> ResolvedSpec:
        """Return the resolved spec of a layout. Defaults that depend on the placement are filled in once."""
        setting, base = layout.setting, self._bases.get(layout.placement)
        if base is None:
            base = resolve(self.space.job_of(layout)).spec
            self._bases[layout.placement] = base
        micro = (setting.micro_batch_size or 1, setting.micro_batch_tokens)
        if (micro, layout.placement) not in self._batches:
            sizes = {"micro_batch_size": micro[0], "micro_batch_tokens": micro[1]}
            batch = base.batch.model_copy(update=sizes)
            self._batches[micro, layout.placement] = batch
        if layout.rollout not in self._rollouts:
            rollout = base.rollout.model_copy(update={"parallelism": layout.rollout})
            self._rollouts[layout.rollout] = rollout
        used = {
            "recompute": setting.recompute,
            "offload": setting.offload,
            "redundancy": setting.redundancy,
        }
        update = base.update.model_copy(update={"parallelism": layout.update, **used})
        return base.model_copy(
            update={
                "update": update,
                "rollout": self._rollouts[layout.rollout],
                "batch": self._batches[micro, layout.placement],
            }
        )

    def memory(self, layout: CandidateLayout, *, with_reshard: bool = False) -> MemoryPlan:
        """Return the memory of all phases. The reshard is left out unless requested, since its plan takes
        longer than everything else."""
        return plan_memory(self.spec_of(layout), self.shape, self.others, with_reshard=with_reshard)

    def memory_problems(self, layout: CandidateLayout, memory: MemoryPlan) -> list[Problem]:
        """Return why the layout does not fit on devices and hosts."""
        spec = self.spec_of(layout)
        return memory_problems(spec, memory) + host_problems(spec, plan_host(spec, memory))

    def estimate(self, layout: CandidateLayout, memory: MemoryPlan) -> LayoutEstimate:
        """Return the time of a layout, with as many sequences at a time as the cache has room for."""
        parts = step_parts(
            self.spec_of(layout),
            self.shape,
            *self.rates,
            room=memory.kv_cache.room or None,
            others=self.others,
        )
        return LayoutEstimate(layout=layout, parts=parts)
