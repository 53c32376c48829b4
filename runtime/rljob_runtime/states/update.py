"""The update state: a rank's share of the samples in, an optimizer step a mini-batch out.

Called by the device worker on every update rank at the same time; the ranks meet in the engine's
sums. Rows are taken as they become ready, in the share's order.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api.rljob import RLJobSpec
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta, Share
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.engines.update_torch import UpdateEngine
from rljob_runtime.errors import DockError
from rljob_runtime.pool_rows import Lineage
from rljob_runtime.sample import SampleBatch
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import UpdateReport
from rljob_runtime.states.samples import read_samples
from rljob_runtime.states.share import claim_in_order
from rljob_runtime.states.shared_reading import agreed, read_together
from rljob_runtime.states.training import Training

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Trains on one replica's share. ranks: as the engine has them."""

    engine: UpdateEngine
    dock: DockClient
    ranks: UpdateRanks
    spec: RLJobSpec

    def run(self, batch: BatchName) -> UpdateReport:
        """All mini-batches and epochs of a step.

        Raises DockError, on every rank and before any weight changed, when one of them cannot read
        its share; WorkerError from the engine.
        """
        rows: list[RowMeta] = []
        lineage = Lineage() if self.spec.flow.partial_rollout else None
        training = Training(self.engine, self.spec, self.ranks)
        try:
            started = self._read(batch, rows, training, lineage)
            metrics = training.finish()
        finally:
            training.discard()
        try:
            if self.ranks.leads:
                self.dock.acknowledge(rows)
        except DockError as error:  # trained all the same, and never again
            log.warning("batch=%s was not acknowledged after its update: %s", batch, error)
        ages = Counter(batch.step - 1 - row.version for row in rows)
        return UpdateReport(
            metrics=metrics, rows_by_age=ages, lineage=lineage, span=Span.since(started)
        )

    def _read(
        self, batch: BatchName, rows: list[RowMeta], training: Training, lineage: Lineage | None
    ) -> float:
        """Give the share to the training as it comes; returns when the first rows came.

        Ends once all ranks have theirs: one that trains alone would wait for ever.
        """
        started = 0.0
        with agreed(self.ranks.everyone):
            sizes = self.spec.batch
            assert sizes.micro_batch_size is not None, "the resolved spec names microBatchSize"
            for part in read_together(
                self.ranks,
                lambda: self._claims(batch),
                lambda claimed: self._samples(batch, claimed, lineage),
                parts=-(-self._num_groups // sizes.micro_batch_size),
            ):
                started = started or time.time()
                rows += part.rows
                training.add(part.samples)
        return started

    @property
    def _num_groups(self) -> int:
        """Of the share."""
        replica, replicas = self.ranks.share
        return len(range(replica, self.spec.batch.global_batch_size, replicas))

    def _samples(
        self, batch: BatchName, rows: list[RowMeta], lineage: Lineage | None
    ) -> SampleBatch:
        if lineage is not None:
            lineage.add(self.dock, rows, version=batch.step - 1)
        reference = self.spec.algorithm.params.kl_coefficient > 0
        fields = ["rollout_logprobs", *(["reference_logprobs"] if reference else [])]
        return read_samples(self.dock, rows, fields=fields, scalars=["reward"])

    def _claims(self, batch: BatchName) -> Iterator[list[RowMeta]]:
        sizes = self.spec.batch
        assert sizes.micro_batch_size is not None, "the resolved spec names microBatchSize"
        assert sizes.mini_batch_size is not None, "the resolved spec names miniBatchSize"
        balance = self.spec.update.balance == "length"
        return claim_in_order(
            self.dock,
            batch,
            Share(*self.ranks.share, window=sizes.mini_batch_size if balance else 0),
            min_version=batch.step - 1 - self.spec.flow.most_stale,
            num_groups=self._num_groups,
            pass_groups=sizes.micro_batch_size,
            pass_rows=sizes.micro_batch_size * sizes.samples_per_prompt,
            timeout_seconds=self.spec.flow.stage_timeout_seconds,
        )
