"""An optimizer step of the engine `megatron` while its micro-batches come. Made by `engine`."""

from typing import Literal

import torch

from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import UNDIVIDED, Forward, LossFn
from rljob_runtime.update.metric_sums import MetricSums
from rljob_runtime.update.update_megatron.core import ShardedModel


class MegatronStep:
    """Losses and metrics so far; the gradient is in the model's `main_grad`. counts: of this replica."""

    def __init__(self, model: ShardedModel, forward: Forward, loss: LossFn) -> None:
        self.counts = Totals(num_tokens=0, num_sequences=0)
        self.metrics = MetricSums()
        self.mean_over: Literal["tokens", "sequences"] | None = None
        self._model, self._forward, self._loss = model, forward, loss
        model.zero_grad_buffer()

    def add(self, batch: SampleBatch, *, teaches: bool = True) -> None:
        """Take a micro-batch in; one that does not teach is computed forward alone."""
        with torch.set_grad_enabled(teaches):
            found = self._forward(batch)
            output = self._loss(found.logprobs_T, batch, UNDIVIDED)
        if output.loss.requires_grad:
            output.loss.backward()  # type: ignore[no-untyped-call]
        counts = Totals.of([batch])
        self.counts += counts
        self.metrics.add(output.loss, output, found, num_tokens=counts.num_tokens)
        self.mean_over = output.mean_over

    def discard(self) -> None:
        """Throw the gradient away."""
        self._model.zero_grad_buffer()
