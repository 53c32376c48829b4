"""The update state: a rank's share of the samples in, an optimizer step a mini-batch out.

Called by the device worker on every update rank at the same time; the ranks meet in the engine's
all-reduce. Rows are taken as they become ready, in the share's order.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup

from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.collectives import sum_over_ranks
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta, Share
from rljob_runtime.engines.update import AnyUpdateEngine
from rljob_runtime.errors import DockError, DockLost
from rljob_runtime.pool_rows import Lineage
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import UpdateReport
from rljob_runtime.states.samples import read_samples
from rljob_runtime.states.share import claim_in_order
from rljob_runtime.states.training import Training

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Trains on one rank's share; share: (update rank, number of update ranks); group: all of these."""

    engine: AnyUpdateEngine
    dock: DockClient
    share: tuple[int, int]
    spec: RLJobSpec
    group: ProcessGroup | None

    def run(self, batch: BatchName) -> UpdateReport:
        """All mini-batches and epochs of a step.

        Raises DockError, on every rank and before any weight changed, when one of them cannot read
        its share; WorkerError from the engine.
        """
        rows: list[RowMeta] = []
        lineage = Lineage() if self.spec.flow.partial_rollout else None
        training = Training(self.engine, self.spec, num_ranks=self.share[1])
        try:
            started = self._read(batch, rows, training, lineage)
            metrics = training.finish()
        finally:
            training.discard()
        try:
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
        reference = self.spec.algorithm.params.kl_coefficient > 0
        fields = ["rollout_logprobs", *(["reference_logprobs"] if reference else [])]
        failure: DockError | None = None
        started = 0.0
        try:
            for part in self._claims(batch):
                started = started or time.time()
                rows += part
                if lineage is not None:
                    lineage.add(self.dock, part, version=batch.step - 1)
                training.add(read_samples(self.dock, part, fields=fields, scalars=["reward"]))
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
        return started

    def _claims(self, batch: BatchName) -> Iterator[list[RowMeta]]:
        sizes = self.spec.batch
        assert sizes.micro_batch_size is not None, "the resolved spec names microBatchSize"
        assert sizes.mini_batch_size is not None, "the resolved spec names miniBatchSize"
        balance = self.spec.update.balance == "length"
        return claim_in_order(
            self.dock,
            batch,
            Share(*self.share, window=sizes.mini_batch_size if balance else 0),
            min_version=batch.step - 1 - self.spec.flow.most_stale,
            num_groups=len(range(self.share[0], sizes.global_batch_size, self.share[1])),
            pass_groups=sizes.micro_batch_size,
            pass_rows=sizes.micro_batch_size * sizes.samples_per_prompt,
            timeout_seconds=self.spec.flow.stage_timeout_seconds,
        )
