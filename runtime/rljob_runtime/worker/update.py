"""The update state, and the critic's: a rank's share of the samples in, one optimizer step per mini-batch
out.

The device worker calls it on every update rank concurrently; the ranks synchronize in the engine's sums. Rows
are read as they become ready, in the share's order.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from rljob_api.topology.devices import most_stale
from rljob_api.topology.fewer_replicas import share_of_mini_batches
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta, Share
from rljob_runtime.errors import DockError, DockLost
from rljob_runtime.prompts.passed_rows import PassedSamples
from rljob_runtime.prompts.pool_rows import Lineage
from rljob_runtime.record.digests import RankDigest, RowSums
from rljob_runtime.record.reports import UpdateReport
from rljob_runtime.record.spans import BatchTimer, DeviceWork, StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.worker.agree import fail_together
from rljob_runtime.worker.bad_batch import BadRow, all_finite, bad_rows
from rljob_runtime.worker.digests import add_rows
from rljob_runtime.worker.micro_batches import score
from rljob_runtime.worker.samples import read_samples
from rljob_runtime.worker.share import claim_in_order
from rljob_runtime.worker.shared_reading import read_together
from rljob_runtime.worker.training import BatchTraining, rewarded_samples
from rljob_runtime.worker.training_objective import MakeObjective, policy_objective

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchInProgress:
    """A batch whose share was read, and whose first gradient exists; no weight has changed.

    rows: all that were read; chunks: the samples that count.
    """

    batch: BatchName
    training: BatchTraining
    rows: list[RowMeta]
    chunks: list[tuple[list[RowMeta], SampleBatch]]
    lineage: Lineage | None
    passed: PassedSamples | None
    sums: RowSums
    work: BatchTimer


@dataclass(slots=True, kw_only=True)
class UpdateState:
    """Trains on one replica's share.

    ranks: those of the engine. control: of the run's KL coefficient, which each step of the policy adjusts.
    teaches: creates the objective; for the critic, `spec` has the critic in the policy's place. ready: called
    before the first pass, once there are samples; the weights are then on the device. critic: trained with
    the policy, or not at all, so that a restarted step has trained neither. pictures: reads those of prompts
    that have any.
    """

    engine: AnyUpdateEngine
    dock: DockClient
    ranks: UpdateRanks
    spec: ResolvedSpec
    control: KlControl
    teaches: MakeObjective = policy_objective
    ready: Callable[[], None] = lambda: None
    critic: "UpdateState | None" = None
    pictures: "PictureReader | None" = None
    _begun: _BatchInProgress | None = field(default=None, init=False)
    _settled: tuple[int, int] | None = field(default=None, init=False)
    """A step of the run after which weights and state were complete, and the engine's steps at that time."""

    @property
    def after(self) -> int | None:
        """Return the step of the run that weights and state follow.

        None during a step, and before the first `settle`.
        """
        if self._settled is None:
            return None
        step, engine_steps = self._settled
        is_complete = engine_steps == self.engine.step
        if self.critic is not None:
            is_complete &= self.critic.after == step
        return step if is_complete else None

    def settle(self, step: int, *, first: bool = False) -> None:
        """Record that weights and state are those after this step of the run.

        first: ignore it if a step was recorded before.
        """
        if not first or self._settled is None:
            self._settled = (step, self.engine.step)
            if self.critic is not None:
                self.critic.settle(step)

    def run(self, batch: BatchName) -> UpdateReport:
        """Run all mini-batches and epochs of a step, after those of the critic, which has read its share.

        Raises DockError, on every rank and before any weight changed, if one of them could not read its
        share; WorkerError from the engine.
        """
        if self.critic is not None and not self.critic.has_read(batch):
            raise DockLost(
                f"the critic could not read its share of {batch}, so nothing trains on it"
            )
        self.read(batch)
        taught = self.critic.finish() if self.critic is not None else None
        report = self.finish()
        self.settle(batch.step)
        if taught is None:
            return report
        return replace(
            report, critic_metrics=taught.metrics, bad_rows=report.bad_rows or taught.bad_rows
        )

    def has_read(self, batch: BatchName) -> bool:
        """Return whether `finish` would train on this batch."""
        return self._begun is not None and self._begun.batch == batch

    def read(self, batch: BatchName) -> StageSpan:
        """Read the share; no weight changes before `finish`. Raises as `run`.

        A batch that was read before and not finished is discarded.
        """
        if self._begun is not None:
            self._begun.training.discard()
            self._begun = None
        claimed: list[RowMeta] = []
        chunks: list[tuple[list[RowMeta], SampleBatch]] = []
        of_policy = self.teaches is policy_objective
        lineage = Lineage() if self.spec.flow.partial_rollout and of_policy else None
        passed = PassedSamples() if self.spec.data.difficulty_filter and of_policy else None
        training = BatchTraining(self.engine, self.spec, self.ranks, self.control, self.teaches)
        sums = RowSums()
        try:
            work = self._read(batch, claimed, chunks, training, (lineage, passed), sums)
        except BaseException:
            training.discard()
            raise
        self._begun = _BatchInProgress(
            batch=batch,
            training=training,
            rows=claimed,
            chunks=chunks,
            lineage=lineage,
            passed=passed,
            sums=sums,
            work=work,
        )
        return work.span()

    def finish(self) -> UpdateReport:
        """Train on the batch that was read."""
        assert self._begun is not None, "a batch is read before it trains"
        begun, self._begun = self._begun, None
        batch, rows = begun.batch, begun.rows
        try:
            metrics = begun.training.finish()
        finally:
            begun.training.discard()
        try:
            if self.ranks.leads:
                self.dock.acknowledge(rows)
        except DockError as error:  # trained nevertheless, and not again
            log.warning("batch=%s was not acknowledged after its update: %s", batch, error)
        ages = Counter(batch.step - 1 - row.version for row in rows)
        return UpdateReport(
            bad_rows=[] if all_finite(metrics) else self._bad_rows(begun),
            metrics=metrics,
            rows_by_age=ages,
            lineage=begun.lineage,
            passed=begun.passed,
            tokens=sum(row.lengths["prompt"] + row.lengths["response"] for row in rows),
            passes=begun.training.passes,
            digest=RankDigest(rows=begun.sums),
            span=begun.work.span(DeviceWork.of(begun.training.own_passes)),
        )

    def _bad_rows(self, begun: _BatchInProgress) -> list[BadRow]:
        """Return the rows of a non-finite step; an error in this function does not stop the run."""
        alone = self.ranks.groups is None and not self.ranks.passes_meet
        of_pairs = hasattr(self.spec.algorithm.params, "pair_loss")
        tokens = self.spec.batch.micro_batch_tokens
        try:
            return bad_rows(
                begun.chunks,
                logprobs_of=partial(score, logprobs=self.engine.logprobs, tokens=tokens, group=None)
                if alone
                else None,
                column="logprobs" if self.teaches is policy_objective else "values_now",
                loss=None if of_pairs else self.teaches(self.spec, self.control).loss,
            )
        except Exception as error:
            log.warning(
                "batch=%s is not finite, and its rows cannot be told: %s", begun.batch, error
            )
            return []

    def _read(
        self,
        batch: BatchName,
        claimed: list[RowMeta],
        chunks: list[tuple[list[RowMeta], SampleBatch]],
        training: BatchTraining,
        trackers: tuple[Lineage | None, PassedSamples | None],
        sums: RowSums,
    ) -> BatchTimer:
        """Pass the share to the training as it arrives; returns the time spent waiting.

        It ends once all ranks have read their share: a rank that trained alone would wait forever.
        """
        work = BatchTimer()
        with fail_together(self.ranks.everyone):
            sizes = self.spec.batch
            sample_chunks = read_together(
                self.ranks,
                lambda: self._claims(batch),
                lambda rows: self._samples(batch, rows, *trackers),
                num_chunks=-(-self._num_groups // sizes.micro_batch_size),
            )
            for chunk in work.each(sample_chunks):
                claimed += chunk.rows
                add_rows(sums, chunk.rows, chunk.samples)  # before the algorithm adds its fields
                self.ready()
                rows = (
                    [chunk.rows[index] for index in rewarded_samples(chunk.samples)]
                    if chunk.rows
                    else []
                )
                chunks.append((rows, training.add(chunk.samples)))
        return work

    @property
    def _num_groups(self) -> int:
        """Return the number of groups in the share."""
        balanced = self.spec.update.balance == "length"
        return sum(share_of_mini_batches(self.ranks.share, self.spec.batch, balanced=balanced))

    def _samples(
        self,
        batch: BatchName,
        rows: list[RowMeta],
        lineage: Lineage | None,
        passed: PassedSamples | None,
    ) -> SampleBatch:
        if lineage is not None:
            lineage.add(self.dock, rows, version=batch.step - 1)
        if passed is not None:
            passed.add(self.dock, rows)
        params = self.spec.algorithm.params
        return read_samples(
            self.dock,
            rows,
            fields=params.fields,
            scalars=params.scalars,
            masked=self.spec.has_turns,
            routed=self.spec.update.router_replay and self.teaches is policy_objective,
            pictures=self.pictures,
        )

    def _claims(self, batch: BatchName) -> Iterator[list[RowMeta]]:
        sizes = self.spec.batch
        balance = self.spec.update.balance == "length"
        return claim_in_order(
            self.dock,
            batch,
            Share(*self.ranks.share, window=sizes.mini_batch_size if balance else 0),
            min_version=batch.step - 1 - most_stale(self.spec),
            num_groups=self._num_groups,
            pass_groups=sizes.micro_batch_size,
            pass_rows=sizes.micro_batch_size * sizes.samples_per_prompt,
            timeout_seconds=self.spec.flow.stage_timeout_seconds,
        )
