"""The reference state: log-probs of the responses under the frozen starting model."""

import time
from dataclasses import dataclass

import torch

from rljob_runtime.batches import BatchName
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.spans import Span
from rljob_runtime.states.samples import read_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Scores one worker's share; share: (rank, number of workers that hold a reference model)."""

    model: PolicyModel
    dock: DockClient
    share: tuple[int, int]
    temperature: float
    rows_per_pass: int
    timeout_seconds: float

    def run(self, batch: BatchName) -> Span:
        """Write `reference_logprobs` for the share."""
        started = time.time()
        claim = self.dock.claim(str(batch), share=self.share, timeout_seconds=self.timeout_seconds)
        rows = list(claim.rows)
        for first in range(0, len(rows), self.rows_per_pass):
            part = rows[first : first + self.rows_per_pass]
            samples = read_samples(self.dock, part, fields=())
            with torch.no_grad():
                scored = self.model.logprobs(samples, temperature=self.temperature)
            lengths = [len(response) for response in samples.responses]
            columns = [piece.numpy() for piece in torch.split(scored.logprobs_T.float(), lengths)]
            self.dock.write(part, {"reference_logprobs": Ragged.from_rows(columns)})
        return Span.since(started)
