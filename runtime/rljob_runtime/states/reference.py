"""The reference state: log-probs of the responses under the frozen starting model."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rljob_api.workload import Batch
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.spans import Span
from rljob_runtime.states.samples import read_samples
from rljob_runtime.states.share import claim_in_order
from rljob_runtime.states.shared_reading import agreed, read_together


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Scores one replica's share. ranks: of the update layout, which the model lies on as the policy does.

    pass_groups: of one forward pass.
    """

    model: PolicyModel
    dock: DockClient
    ranks: UpdateRanks
    temperature: float
    sizes: Batch
    pass_groups: int
    timeout_seconds: float

    def run(self, batch: BatchName) -> Span:
        """Write `reference_logprobs` for the share, as its responses come."""
        started = 0.0
        for part in read_together(
            self.ranks,
            lambda: self._claims(batch),
            lambda claimed: read_samples(self.dock, claimed, fields=()),
            parts=-(-self._num_groups // self.pass_groups),
        ):
            started = started or time.time()
            samples = part.samples
            with torch.no_grad():
                scored = self.model.logprobs(samples, temperature=self.temperature)
            lengths = [len(response) for response in samples.responses]
            columns = [piece.numpy() for piece in torch.split(scored.logprobs_T.float(), lengths)]
            with agreed(self.ranks.together):
                if self.ranks.leads:
                    written = {"reference_logprobs": Ragged.from_rows(columns)}
                    self.dock.write(part.rows, written)
        return Span.since(started)

    @property
    def _num_groups(self) -> int:
        """Of the share."""
        replica, replicas = self.ranks.share
        return len(range(replica, self.sizes.global_batch_size, replicas))

    def _claims(self, batch: BatchName) -> Iterator[list[RowMeta]]:
        return claim_in_order(
            self.dock,
            batch,
            self.ranks.share,
            num_groups=self._num_groups,
            pass_groups=self.pass_groups,
            pass_rows=self.pass_groups * self.sizes.samples_per_prompt,
            timeout_seconds=self.timeout_seconds,
        )
