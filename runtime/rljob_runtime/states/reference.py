"""The reference state: log-probs of the responses under the frozen starting model."""

import time
from dataclasses import dataclass

import torch

from rljob_api.workload import Batch
from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.spans import Span
from rljob_runtime.states.samples import read_samples
from rljob_runtime.states.share import claim_in_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Scores one worker's share; share: (rank, number of workers that hold a reference model).

    pass_groups: of one forward pass.
    """

    model: PolicyModel
    dock: DockClient
    share: tuple[int, int]
    temperature: float
    sizes: Batch
    pass_groups: int
    timeout_seconds: float

    def run(self, batch: BatchName) -> Span:
        """Write `reference_logprobs` for the share, as its responses come."""
        started = 0.0
        for part in claim_in_order(
            self.dock,
            batch,
            self.share,
            num_groups=len(range(self.share[0], self.sizes.global_batch_size, self.share[1])),
            pass_groups=self.pass_groups,
            pass_rows=self.pass_groups * self.sizes.samples_per_prompt,
            timeout_seconds=self.timeout_seconds,
        ):
            started = started or time.time()
            samples = read_samples(self.dock, part, fields=())
            with torch.no_grad():
                scored = self.model.logprobs(samples, temperature=self.temperature)
            lengths = [len(response) for response in samples.responses]
            columns = [piece.numpy() for piece in torch.split(scored.logprobs_T.float(), lengths)]
            self.dock.write(part, {"reference_logprobs": Ragged.from_rows(columns)})
        return Span.since(started)
