"""The update state, and the critic's: a rank's share of the samples in, an optimizer step a mini-batch out.

Called by the device worker on every update rank at the same time; the ranks meet in the engine's
sums. Rows are taken as they become ready, in the share's order.
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
from rljob_runtime.prompts.passed_rows import Passed
from rljob_runtime.prompts.pool_rows import Lineage
from rljob_runtime.record.digests import RankDigest, RowSums
from rljob_runtime.record.reports import UpdateReport
from rljob_runtime.record.spans import BatchTimer, DeviceWork, StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.worker.agree import agreed
from rljob_runtime.worker.bad_batch import BadRow, all_finite, bad_rows
from rljob_runtime.worker.digests import add_rows
from rljob_runtime.worker.micro_batches import score
from rljob_runtime.worker.samples import read_samples
from rljob_runtime.worker.share import claim_in_order
from rljob_runtime.worker.shared_reading import read_together
from rljob_runtime.worker.training import Training, counted
from rljob_runtime.worker.training_objective import MakeObjective, policy_objective

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A batch whose share was read, and whose first gradient is there; no weight has moved. rows: of all that
    was read; parts: of what counts."""

    batch: BatchName
    training: Training
    rows: list[RowMeta]
    parts: list[tuple[list[RowMeta], SampleBatch]]
    lineage: Lineage | None
    passed: Passed | None
    sums: RowSums
    work: BatchTimer


@dataclass(slots=True, kw_only=True)
class Update:
    """Trains on one replica's share. ranks: as the engine has them. control: of the run's KL
    coefficient, which each step of the policy moves. teaches: what by; of the critic, `spec` has it in the
    policy's place. ready: called before the first pass, once there are samples: the weights are on the device
    afterwards. critic: moves with the policy, or not at all, so that a step that starts over has taught
    neither. pictures: of prompts that show any."""

    engine: AnyUpdateEngine
    dock: DockClient
    ranks: UpdateRanks
    spec: ResolvedSpec
    control: KlControl
    teaches: MakeObjective = policy_objective
    ready: Callable[[], None] = lambda: None
    critic: "Update | None" = None
    pictures: "PictureReader | None" = None
    _begun: _Begun | None = field(default=None, init=False)
    _settled: tuple[int, int] | None = field(default=None, init=False)
    """A step of the run after which weights and state were whole, and the engine's steps then."""

    @property
    def after(self) -> int | None:
        """The step of the run that weights and state are after; None between two, and before any was
        said."""
        if self._settled is None:
            return None
        step, of_engine = self._settled
        whole = of_engine == self.engine.step
        if self.critic is not None:
            whole &= self.critic.after == step
        return step if whole else None

    def settle(self, step: int, *, first: bool = False) -> None:
        """Weights and state are now those after this step of the run. first: nothing was said of them
        before, or this does not count."""
        if not first or self._settled is None:
            self._settled = (step, self.engine.step)
            if self.critic is not None:
                self.critic.settle(step)

    def run(self, batch: BatchName) -> UpdateReport:
        """All mini-batches and epochs of a step, of the critic first, which has read its share.

        Raises DockError, on every rank and before any weight changed, when one of them could not read
        its share; WorkerError from the engine.
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
        """Whether `finish` would train on this batch."""
        return self._begun is not None and self._begun.batch == batch

    def read(self, batch: BatchName) -> StageSpan:
        """Take the share in; no weight moves before `finish`. What was read before and not finished is thrown
        away. Raises as `run`."""
        if self._begun is not None:
            self._begun.training.discard()
            self._begun = None
        claimed: list[RowMeta] = []
        parts: list[tuple[list[RowMeta], SampleBatch]] = []
        of_policy = self.teaches is policy_objective
        lineage = Lineage() if self.spec.flow.partial_rollout and of_policy else None
        passed = Passed() if self.spec.data.difficulty_filter and of_policy else None
        training = Training(self.engine, self.spec, self.ranks, self.control, self.teaches)
        sums = RowSums()
        try:
            work = self._read(batch, claimed, parts, training, (lineage, passed), sums)
        except BaseException:
            training.discard()
            raise
        self._begun = _Begun(
            batch=batch,
            training=training,
            rows=claimed,
            parts=parts,
            lineage=lineage,
            passed=passed,
            sums=sums,
            work=work,
        )
        return work.span()

    def finish(self) -> UpdateReport:
        """Train on what was read."""
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
        except DockError as error:  # trained all the same, and never again
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
            span=begun.work.span(DeviceWork.of(begun.training.own)),
        )

    def _bad_rows(self, begun: _Begun) -> list[BadRow]:
        """What the step was made of; an error here is no reason to stop the run."""
        alone = self.ranks.groups is None and not self.ranks.passes_meet
        of_pairs = hasattr(self.spec.algorithm.params, "pair_loss")
        tokens = self.spec.batch.micro_batch_tokens
        try:
            return bad_rows(
                begun.parts,
                says=partial(score, logprobs=self.engine.logprobs, tokens=tokens, group=None)
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
        parts: list[tuple[list[RowMeta], SampleBatch]],
        training: Training,
        told: tuple[Lineage | None, Passed | None],
        sums: RowSums,
    ) -> BatchTimer:
        """Give the share to the training as it comes; returns what was waited for.

        Ends once all ranks have theirs: one that trains alone would wait for ever.
        """
        work = BatchTimer()
        with agreed(self.ranks.everyone):
            sizes = self.spec.batch
            read = read_together(
                self.ranks,
                lambda: self._claims(batch),
                lambda rows: self._samples(batch, rows, *told),
                parts=-(-self._num_groups // sizes.micro_batch_size),
            )
            for part in work.each(read):
                claimed += part.rows
                add_rows(sums, part.rows, part.samples)  # before the algorithm adds its own
                self.ready()
                rows = [part.rows[place] for place in counted(part.samples)] if part.rows else []
                parts.append((rows, training.add(part.samples)))
        return work

    @property
    def _num_groups(self) -> int:
        """Of the share."""
        balanced = self.spec.update.balance == "length"
        return sum(share_of_mini_batches(self.ranks.share, self.spec.batch, balanced=balanced))

    def _samples(
        self,
        batch: BatchName,
        rows: list[RowMeta],
        lineage: Lineage | None,
        passed: Passed | None,
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
