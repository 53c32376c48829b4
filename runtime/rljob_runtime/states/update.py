"""The update state: a rank's share of the samples in, an optimizer step a mini-batch out.

Called by the device worker on every update rank at the same time; the ranks meet in the engine's
all-reduce. Which samples form a mini-batch is a function of (prompt, sample) alone.
"""

# B samples, T response tokens of all samples together

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.rljob import RLJobSpec
from rljob_runtime.algorithms import ALGORITHMS, LossOutput, Totals
from rljob_runtime.algorithms.functional import groups_with_signal
from rljob_runtime.backends.collectives import sum_over_ranks
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.engines.update_torch import NO_SAMPLES, UpdateEngine
from rljob_runtime.errors import DockError, DockLost
from rljob_runtime.sample import SampleBatch
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import UpdateReport
from rljob_runtime.states.samples import read_samples

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Trains on one rank's share; share: (update rank, number of update ranks); group: all of these."""

    engine: UpdateEngine
    dock: DockClient
    share: tuple[int, int]
    spec: RLJobSpec
    group: ProcessGroup | None

    def run(self, batch: BatchName) -> UpdateReport:
        """All mini-batches and epochs of a step.

        Raises DockError, on every rank and before anything was trained, when one of them cannot read
        its share; WorkerError from the engine.
        """
        started = time.time()
        rows, samples = self._fetch(batch)
        metrics = self._train(samples)
        try:
            self.dock.acknowledge(rows)
        except DockLost as lost:  # trained and gone: nothing is left to free
            log.warning("batch=%s was lost after its update: %s", batch, lost)
        return UpdateReport(version=self.engine.version, metrics=metrics, span=Span.since(started))

    def _fetch(self, batch: BatchName) -> tuple[list[RowMeta], SampleBatch]:
        """This rank's share, once all ranks have theirs: one that trains alone would wait for ever."""
        reference = self.spec.algorithm.params.kl_coefficient > 0
        failure: DockError | None = None
        rows: list[RowMeta] = []
        samples = NO_SAMPLES
        try:
            claim = self.dock.claim(
                str(batch), share=self.share, timeout_seconds=self.spec.flow.stage_timeout_seconds
            )
            rows = list(claim.rows)
            samples = read_samples(
                self.dock,
                rows,
                fields=["rollout_logprobs", *(["reference_logprobs"] if reference else [])],
                scalars=["reward"],
            )
        except DockError as error:
            failure = error
        failed = torch.tensor([int(failure is not None)])
        sum_over_ranks(failed, self.group)
        if failure is not None:
            raise failure
        if failed.item():
            raise DockLost(
                f"{int(failed)} other update ranks could not read their share of {batch}"
            )
        return rows, samples

    def _train(self, samples: SampleBatch) -> dict[str, float]:
        params = self.spec.algorithm.params
        algorithm = ALGORITHMS[self.spec.algorithm.name]
        samples.scalars["advantage"] = algorithm.advantages(
            samples.scalars["reward"], samples.group_of_B, params
        )
        mini_batches = self._mini_batches(samples)
        steps = len(mini_batches) * self.spec.batch.epochs
        if steps > 1:
            self._add_old_logprobs(samples)

        def loss(logprobs_T: Tensor, part: SampleBatch, totals: Totals) -> LossOutput:
            return algorithm.loss(logprobs_T, part, params, totals)

        reports = []
        for _ in range(self.spec.batch.epochs):
            for members in mini_batches:
                part = samples.select(members)
                silent = self._without_gradient(part)
                reports.append(
                    self.engine.train(
                        self._micro_batches(part, [i for i in range(len(silent)) if not silent[i]]),
                        loss,
                        without_gradient=self._micro_batches(
                            part, [i for i in range(len(silent)) if silent[i]]
                        ),
                        groups_with_signal=groups_with_signal(
                            part.scalars["reward"], part.group_of_B
                        ),
                        min_groups_with_signal=params.min_groups_with_signal,
                    )
                )
        return _mean(reports)

    def _mini_batches(self, samples: SampleBatch) -> list[list[int]]:
        """Samples of each mini-batch: this rank's part of miniBatchSize consecutive prompts."""
        size = self.spec.batch.mini_batch_size
        assert size is not None, "the resolved spec names miniBatchSize"
        return _cut_by_group(samples, size // self.share[1])

    def _without_gradient(self, samples: SampleBatch) -> list[bool]:
        """Samples that cannot move the weights: advantage 0 and no other term in the loss."""
        if self.spec.algorithm.params.kl_coefficient > 0:
            return [False] * samples.num_samples
        return [advantage == 0 for advantage in samples.scalars["advantage"].tolist()]

    def _micro_batches(self, samples: SampleBatch, members: list[int]) -> list[SampleBatch]:
        """The members, microBatchSize groups at a time."""
        size = self.spec.batch.micro_batch_size
        assert size is not None, "the resolved spec names microBatchSize"
        if not members:
            return []
        chosen = samples.select(members)
        return [chosen.select(part) for part in _cut_by_group(chosen, size)]

    def _add_old_logprobs(self, samples: SampleBatch) -> None:
        """Log-probs under the weights before the step, which the ratio is taken against."""
        old: list[Tensor] = []
        for members in _cut_by_group(samples, self.spec.batch.micro_batch_size or 1):
            part = samples.select(members)
            lengths = [len(response) for response in part.responses]
            old += torch.split(self.engine.logprobs(part), lengths)
        samples.fields["old_logprobs"] = old


def _cut_by_group(samples: SampleBatch, groups: int) -> list[list[int]]:
    """Samples of each run of `groups` groups; samples come group after group."""
    parts: list[list[int]] = [[] for _ in range(-(-len(samples.prompts) // max(groups, 1)))]
    for sample, group in enumerate(samples.group_of_B.tolist()):
        parts[group // max(groups, 1)].append(sample)
    return parts


def _mean(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its optimizer steps; a maximum stays one."""
    return {
        name: max(values) if name.endswith("max") else sum(values) / len(values)
        for name, values in ((n, [report[n] for report in reports]) for n in reports[0])
    }
