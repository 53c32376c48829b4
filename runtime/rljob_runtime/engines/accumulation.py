"""One optimizer step in the making: gradients and metrics of the micro-batches that came so far.

Made by the update engine. The global counts that a mean is taken over are known only once all of the
batch is there, so losses are added up undivided and their sum is divided at the end.
"""

# T response tokens of all samples together

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rljob_runtime.algorithms.base import LossOutput, Totals
from rljob_runtime.engines.gradients import GradientBuffer
from rljob_runtime.engines.metric_sums import MetricSums
from rljob_runtime.sample import SampleBatch

LossFn = Callable[[Tensor, SampleBatch, Totals], LossOutput]
Forward = Callable[[SampleBatch], tuple[Tensor, Tensor]]
"""Log-probs [T] and entropies [T] of a micro-batch."""

NO_SAMPLES = SampleBatch(prompts=[], group_of_B=torch.zeros(0, dtype=torch.int64), responses=[])
UNDIVIDED = Totals(num_tokens=1, num_sequences=1)


class Accumulation:
    """Gradients go into `gradients`, which lives until `discard`. counts: of this rank's samples."""

    def __init__(self, forward: Forward, loss: LossFn, gradients: GradientBuffer) -> None:
        self.gradients = gradients
        self.counts = Totals(num_tokens=0, num_sequences=0)
        self.metrics = MetricSums()
        self._forward = forward
        self._loss = loss
        self._mean_over: str | None = None

    def add(self, batch: SampleBatch, *, teaches: bool = True) -> None:
        """Take a micro-batch in; one that does not teach has no gradient and is computed forward alone."""
        with torch.set_grad_enabled(teaches):
            logprobs_T, entropy_T = self._forward(batch)
            output = self._loss(logprobs_T, batch, UNDIVIDED)
        if output.loss.requires_grad:
            output.loss.backward()  # type: ignore[no-untyped-call]
        self.counts += Totals.of([batch])
        self.metrics.add(output, entropy=entropy_T.sum())
        self._mean_over = output.mean_over

    def close(self) -> None:
        """All samples are in: a rank that had none names its metrics all the same."""
        if self._mean_over is None:
            self.add(NO_SAMPLES)

    def divide(self, totals: Totals) -> None:
        """Make means of the sums. totals: over all ranks."""
        by = totals.num_tokens if self._mean_over == "tokens" else totals.num_sequences
        self.metrics.loss /= max(by, 1)
        self.gradients.divide(max(by, 1))

    def discard(self) -> None:
        """Drop the gradients; the weights have not changed."""
        self.gradients.free()


def add_all(into: Accumulation, batches: Iterable[SampleBatch], *, teaches: bool = True) -> None:
    """Take several micro-batches in, in order."""
    for batch in batches:
        into.add(batch, teaches=teaches)
