"""The optimizer steps of one batch on one rank: the first one's gradient grows while samples come.

Called by the update state, which adds groups in the share's order. Which of them form a mini-batch and
a micro-batch depends on this order alone, so a batch that comes in parts and one that is there at once
give the same bits.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rljob_api.rljob import RLJobSpec
from rljob_runtime.algorithms import ALGORITHMS, LossOutput, Totals
from rljob_runtime.algorithms.functional import groups_with_signal
from rljob_runtime.engines.accumulation import Accumulation
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.engines.update_torch import UpdateEngine
from rljob_runtime.sample import SampleBatch
from rljob_runtime.states.micro_batches import MicroBatch, MicroBatches, in_step


class Training:
    """ranks: as the engine has them. Until `finish`, no weight changes and `discard` undoes everything."""

    def __init__(self, engine: UpdateEngine, spec: RLJobSpec, ranks: UpdateRanks) -> None:
        batch = spec.batch
        assert batch.mini_batch_size is not None, "the resolved spec names miniBatchSize"
        assert batch.micro_batch_size is not None, "the resolved spec names microBatchSize"
        self._engine = engine
        self._spec = spec
        self._algorithm = ALGORITHMS[spec.algorithm.name]
        self._mini_groups = batch.mini_batch_size // ranks.share[1]
        self._meeting = ranks.everyone if ranks.passes_meet else None
        self._several = batch.global_batch_size // batch.mini_batch_size * batch.epochs > 1
        self._groups: list[SampleBatch] = []
        self._cut = self._micro_batches()
        self._first: Accumulation | None = None

    def add(self, samples: SampleBatch) -> None:
        """Take the next whole groups of the share in."""
        samples.scalars["advantage"] = self._algorithm.advantages(
            samples.scalars["reward"], samples.group_of_B, self._spec.algorithm.params
        )
        if self._several:  # what the ratio is taken against: the weights before the step
            lengths = [len(response) for response in samples.responses]
            old_T = self._engine.logprobs(samples)
            samples.fields["old_logprobs"] = list(torch.split(old_T, lengths))
        if self._spec.flow.off_policy:
            samples.fields["behaviour_logprobs"] = samples.fields["rollout_logprobs"]
        for group in samples.by_group():
            if len(self._groups) < self._mini_groups:
                self._add_to(self._begun(), group)
            self._groups.append(group)

    def finish(self) -> dict[str, float]:
        """All optimizer steps of the batch, on all ranks at once; metrics, the mean of the steps'."""
        reports = []
        for epoch in range(self._spec.batch.epochs):
            for first in range(0, max(len(self._groups), 1), self._mini_groups):
                members = self._groups[first : first + self._mini_groups]
                begun = self._begun()
                if epoch or first:
                    for group in members:
                        self._add_to(begun, group)
                reports.append(self._step(begun, members))
        return _mean(reports)

    def discard(self) -> None:
        """Throw the gradient away that was not finished."""
        if self._first is not None:
            self._first.discard()
            self._first = None

    def _begun(self) -> Accumulation:
        """The optimizer step that is being made."""
        if self._first is None:
            self._first = self._engine.begin(self._loss)
            self._cut = self._micro_batches()
        return self._first

    def _step(self, begun: Accumulation, members: Sequence[SampleBatch]) -> dict[str, float]:
        self._run(begun, self._cut.rest())
        self._first = None
        return self._engine.finish(
            begun,
            groups_with_signal=sum(
                groups_with_signal(group.scalars["reward"], group.group_of_B) for group in members
            ),
            min_groups_with_signal=self._spec.algorithm.params.min_groups_with_signal,
        )

    def _add_to(self, begun: Accumulation, group: SampleBatch) -> None:
        self._run(begun, self._cut.add(group))

    def _run(self, begun: Accumulation, own: Iterable[MicroBatch]) -> None:
        for micro_batch in in_step(own, self._meeting):
            begun.add(micro_batch.samples, teaches=micro_batch.teaches)

    def _loss(self, logprobs_T: Tensor, part: SampleBatch, totals: Totals) -> LossOutput:
        return self._algorithm.loss(logprobs_T, part, self._spec.algorithm.params, totals)

    def _micro_batches(self) -> MicroBatches:
        size = self._spec.batch.micro_batch_size or 1
        return MicroBatches(size=size, all_teach=self._spec.algorithm.params.kl_coefficient > 0)


def _mean(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its optimizer steps; a maximum stays one."""
    return {
        name: max(values) if name.endswith("max") else sum(values) / len(values)
        for name, values in ((n, [report[n] for report in reports]) for n in reports[0])
    }
