"""The compare state: how well the policy distinguishes held-out pairs. It changes no weight.

The device worker calls it on every update rank concurrently, in evaluations of jobs with pairs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_api.spec.algorithms.dpo import DPOParams
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.algorithms import dpo
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.record.reports import CompareReport
from rljob_runtime.record.spans import BatchTimer
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.worker.agree import fail_together
from rljob_runtime.worker.samples import read_samples
from rljob_runtime.worker.share import claim_in_order
from rljob_runtime.worker.shared_reading import read_together


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareState:
    """Compares one replica's share of the pairs. ranks: those of the engine."""

    engine: AnyUpdateEngine
    dock: DockClient
    ranks: UpdateRanks
    spec: ResolvedSpec

    def run(self, batch: BatchName) -> CompareReport:
        """Return the margins of the share; within a replica, only the leading rank has any."""
        work, margins = BatchTimer(), list[float]()
        params = self.spec.algorithm.params
        assert isinstance(params, DPOParams), "the rules allow no other algorithm with pairs"
        replica, replicas = self.ranks.share
        assert self.spec.evaluation is not None, "an evaluation without spec.evaluation"
        num_groups = len(range(replica, self.spec.evaluation.prompts, replicas))
        pass_groups = self.spec.batch.micro_batch_size
        chunks = read_together(
            self.ranks,
            lambda: self._claims(batch, num_groups, pass_groups),
            lambda rows: read_samples(
                self.dock, rows, fields=params.fields, scalars=params.scalars
            ),
            num_chunks=-(-num_groups // pass_groups),
        )
        for chunk in work.each(chunks):
            dpo.prepare(chunk.samples, params)
            margins_P = self._margins(chunk.samples, params)
            with fail_together(self.ranks.pass_group):
                if self.ranks.leads:
                    self.dock.acknowledge(chunk.rows)
                    margins += margins_P.tolist()
        return CompareReport(margins=margins, span=work.span())

    def _margins(self, samples: SampleBatch, params: DPOParams) -> Tensor:
        with torch.no_grad():
            return params.beta * dpo.margins(self.engine.logprobs(samples), samples, params)

    def _claims(
        self, batch: BatchName, num_groups: int, pass_groups: int
    ) -> Iterator[list[RowMeta]]:
        return claim_in_order(
            self.dock,
            batch,
            self.ranks.share,
            num_groups=num_groups,
            pass_groups=pass_groups,
            pass_rows=2 * pass_groups,
            timeout_seconds=self.spec.flow.stage_timeout_seconds,
        )
