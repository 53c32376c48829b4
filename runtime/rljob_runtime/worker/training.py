"""The optimizer steps of one batch on one rank: the first step's gradient accumulates while samples arrive.

The update state adds groups in the share's order. This order alone determines mini-batches and micro-batches,
so that a batch which arrives in chunks gives the same bits as a complete one.
"""

import math
import time
from collections.abc import Iterable, Sequence

from torch import Tensor

from rljob_api.spec.algorithms.sampling import BatchReweighting
from rljob_api.topology.devices import off_policy
from rljob_api.topology.fewer_replicas import share_of_mini_batches
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.algorithms.filtering import filter_samples
from rljob_runtime.algorithms.functional import groups_with_signal
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.algorithms.reweighting import reweight_samples
from rljob_runtime.algorithms.whitening import whiten
from rljob_runtime.devices.collectives import sum_over_ranks
from rljob_runtime.devices.own_time import PassTimer
from rljob_runtime.record.event_types import PassTimes
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.update.update_engine import OptimizerStep
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.worker.micro_batches import (
    MicroBatch,
    MicroBatches,
    count_tokens,
    pad_to_same_count,
    score,
)
from rljob_runtime.worker.training_objective import MakeObjective, policy_objective


class BatchTraining:
    """The optimizer steps of one batch.

    ranks: those of the engine. control: of the run; default: a new one. teaches: creates the objective. Until
    `finish`, no weight changes and `discard` undoes everything. passes: times of all passes so far.
    own_passes: times without waits for other ranks; empty if stages have unequal work, or an engine's waits
    are not visible.
    """

    def __init__(
        self,
        engine: AnyUpdateEngine,
        spec: ResolvedSpec,
        ranks: UpdateRanks,
        control: KlControl | None = None,
        teaches: MakeObjective = policy_objective,
    ) -> None:
        batch = spec.batch
        self._engine = engine
        self._spec = spec
        self._control = control or KlControl.of(spec.algorithm.params)
        self._lesson = teaches(spec, self._control)
        self._ranks = ranks
        self._mini_groups = share_of_mini_batches(
            ranks.share, batch, balanced=spec.update.balance == "length"
        )
        self._meeting = ranks.everyone if ranks.passes_meet else None
        several = batch.global_batch_size // batch.mini_batch_size * batch.epochs > 1
        self._keeps_old = several and self._lesson.of_policy
        self._waits = self._lesson.whole_batch or self._reweighting is not None
        self._groups: list[SampleBatch] = []
        self._signals: list[int] = []
        self._cut = self._micro_batches()
        self._first: OptimizerStep | None = None
        layout = spec.update.parallelism
        self._timed = layout.pipeline == 1
        self._alone = self._timed and (spec.update.engine == "torch" or not layout.shared)
        self.passes, self.own_passes = PassTimes(), PassTimer()

    def add(self, samples: SampleBatch) -> SampleBatch:
        """Add the next full groups of the share; returns those of their samples that count."""
        if self._keeps_old:  # the ratio's denominator: the weights before the step
            tokens = self._spec.batch.micro_batch_tokens
            old_T = score(samples, self._engine.logprobs, tokens=tokens, group=self._meeting)
            samples.fields["old_logprobs"] = samples.split_by_sample(old_T)
        if off_policy(self._spec) and "rollout_logprobs" in samples.fields:
            samples.fields["behaviour_logprobs"] = samples.fields["rollout_logprobs"]
        # A group without samples still counts in a mini-batch.
        samples = samples.keep(rewarded_samples(samples))
        self._lesson.prepare(samples)
        groups = samples.by_group()
        self._signals += [
            groups_with_signal(group.scalars["reward"], group.group_of_B) for group in groups
        ]
        chosen = self._spec.algorithm.params.sample_filter
        if chosen is not None:
            groups = filter_samples(samples, chosen, seed=self._draw_seed).by_group()
        for group in groups:
            if len(self._groups) < self._mini_groups[0] and not self._waits:
                self._add_to(self._begun(), group)
            self._groups.append(group)
        return samples

    def finish(self) -> dict[str, float]:
        """Run all optimizer steps of the batch, on all ranks together; returns metrics, the mean over
        steps."""
        if self._lesson.whole_batch:
            whiten(self._groups, lambda sums: sum_over_ranks(sums, self._ranks.data))
        if self._reweighting is not None:
            self._groups = reweight_samples(
                self._groups,
                self._reweighting,
                seed=self._draw_seed,
                share=self._ranks.share,
                add_up=lambda values: sum_over_ranks(values, self._ranks.data),
            )
        reports = []
        for epoch in range(self._spec.batch.epochs):
            last = 0
            for num_groups in self._mini_groups:
                first, last = last, last + num_groups
                members = self._groups[first:last]
                begun = self._begun()
                if epoch or first or self._waits:
                    for group in members:
                        self._add_to(begun, group)
                with_signal = sum(self._signals[first:last])
                reports.append(self._step(begun, with_signal))
        metrics = _mean(reports)
        if "kl" not in metrics:
            return metrics
        used, sizes = self._control.coefficient, self._spec.batch
        num_samples = sizes.global_batch_size * sizes.samples_per_prompt
        if math.isfinite(metrics["kl"]):
            self._control.follow(metrics["kl"], num_samples=num_samples)
        return metrics | {"kl/coefficient": used}

    def discard(self) -> None:
        """Discard an unfinished gradient."""
        if self._first is not None:
            self._first.discard()
            self._first = None

    def _begun(self) -> OptimizerStep:
        """Return the optimizer step in progress, or begin one."""
        if self._first is None:
            self._first = self._engine.begin(self._lesson.loss)
            self._cut = self._micro_batches()
        return self._first

    @property
    def _reweighting(self) -> BatchReweighting | None:
        return self._spec.algorithm.params.batch_reweighting

    @property
    def _draw_seed(self) -> int:
        """Return the seed of the sample filter, equal for the policy and a critic."""
        return derive_seed(self._spec.seed, "step", self._engine.step)

    def _step(self, begun: OptimizerStep, with_signal: int) -> dict[str, float]:
        self._run(begun, self._cut.remaining())
        self._first = None
        return self._engine.finish(
            begun,
            groups_with_signal=with_signal,
            min_groups_with_signal=self._lesson.min_groups_with_signal,
        )

    def _add_to(self, begun: OptimizerStep, group: SampleBatch) -> None:
        self._run(begun, self._cut.add(group))

    def _run(self, begun: OptimizerStep, micro_batches: Iterable[MicroBatch]) -> None:
        for micro_batch in pad_to_same_count(micro_batches, self._meeting):
            teaches = micro_batch.teaches and self._timed
            tokens = count_tokens(micro_batch.samples) if teaches else 0
            started = time.perf_counter()
            with self.own_passes.timed_pass(tokens if self._alone else 0):
                begun.add(micro_batch.samples, teaches=micro_batch.teaches)
            if teaches:
                self.passes.add(tokens, time.perf_counter() - started)

    def _micro_batches(self) -> MicroBatches:
        batch = self._spec.batch
        return MicroBatches(
            size=batch.micro_batch_size,
            tokens=batch.micro_batch_tokens,
            all_teach=self._lesson.every_sample_teaches,
        )


def rewarded_samples(samples: SampleBatch) -> list[int]:
    """Return indices of the samples that have a reward; a failed score leaves none."""
    has_reward_B: Tensor = ~samples.scalars["reward"].isnan()
    return has_reward_B.nonzero().flatten().tolist()


def _mean(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return metrics of a step from those of its optimizer steps; a maximum stays a maximum."""
    return {
        name: max(values) if name.endswith("max") else sum(values) / len(values)
        for name, values in ((n, [report[n] for report in reports]) for n in reports[0])
    }
