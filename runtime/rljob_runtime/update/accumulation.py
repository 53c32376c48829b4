"""Gradients and metrics accumulated over the micro-batches of an optimizer step in progress.

The update engine creates an `Accumulation`. The global counts that a mean is taken over are known only after
the full batch arrived. Losses are therefore summed undivided, and their sum is divided at the end.
"""

# T response tokens of all samples together

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.parallel.decoder.pipeline_passes import MicroBatchLoss
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.metric_sums import MetricSums
from rljob_runtime.update.step_gradients import StepGradients

LossFn = Callable[[Tensor, SampleBatch, Totals], LossOutput]
Forward = Callable[[SampleBatch], TokenLogprobs]
"""Returns log-probs and entropies of a micro-batch."""

NO_SAMPLES = SampleBatch(prompts=[], group_of_B=torch.zeros(0, dtype=torch.int64), responses=[])
ONE_TOKEN = SampleBatch(
    prompts=[torch.zeros(1, dtype=torch.int64)],
    group_of_B=torch.zeros(1, dtype=torch.int64),
    responses=[torch.zeros(1, dtype=torch.int64)],
)
UNDIVIDED = Totals(num_tokens=1, num_sequences=1)


class Pipeline(Protocol):
    """Runs micro-batches through the stages of several ranks, and backward if there is a loss."""

    def __call__(
        self, batches: Sequence[SampleBatch], *, loss: MicroBatchLoss | None
    ) -> list[TokenLogprobs]:
        """Return the model's outputs for each micro-batch, without gradient, on all ranks."""
        ...


class Accumulation:
    """Accumulates gradients in `gradients`, which live until `discard`. counts: of this replica's samples.

    passes_meet: passes of other replicas wait for this one's. pipeline: receives all micro-batches together
    after the last one arrived; `forward` is then without gradient.
    """

    def __init__(
        self,
        forward: Forward,
        loss: LossFn,
        gradients: StepGradients,
        *,
        passes_meet: bool = False,
        pipeline: Pipeline | None = None,
    ) -> None:
        self.gradients = gradients
        self.counts = Totals(num_tokens=0, num_sequences=0)
        self.metrics = MetricSums()
        self._forward = forward
        self._loss = loss
        self._passes_meet = passes_meet
        self._pipeline = pipeline
        self._waiting: list[tuple[SampleBatch, bool]] = []
        self._mean_over: str | None = None

    def add(self, batch: SampleBatch, *, teaches: bool = True) -> None:
        """Add a micro-batch; one that does not teach has no gradient and only runs the forward pass.

        If passes meet, a micro-batch without tokens runs a dummy token that counts in no sum.
        """
        if self._pipeline is not None:
            self._waiting.append((batch, teaches))
            return
        with torch.set_grad_enabled(teaches):
            if self._passes_meet and not batch.num_tokens:
                self._backward(self._forward(ONE_TOKEN).logprobs_T.sum() * 0)
            self._take(batch)

    def close(self) -> None:
        """End the batch: a rank without samples still registers the names of its metrics."""
        if self._pipeline is not None:
            for teaches in (True, False):
                self._pass_on([b for b, does in self._waiting if does == teaches], teaches=teaches)
            self._waiting = []
        if self._mean_over is None:
            with torch.set_grad_enabled(self._pipeline is None):
                self._take(NO_SAMPLES)

    def divide(self, totals: Totals) -> None:
        """Turn sums into means. totals: over all replicas."""
        by = totals.num_tokens if self._mean_over == "tokens" else totals.num_sequences
        self.metrics.loss /= max(by, 1)
        self.gradients.divide(max(by, 1))

    def discard(self) -> None:
        """Drop the gradients; the weights have not changed."""
        self.gradients.free()

    def _take(self, batch: SampleBatch) -> None:
        token_logprobs = self._forward(batch)
        loss, output = self._loss_of(token_logprobs, batch)
        self._backward(loss)
        self._record(batch, token_logprobs, loss, output)

    def _pass_on(self, batches: list[SampleBatch], *, teaches: bool) -> None:
        """Run micro-batches through the pipeline."""
        assert self._pipeline is not None

        def loss_of(number: int, token_logprobs: TokenLogprobs) -> Tensor:
            batch = batches[number]
            return (
                self._loss_of(token_logprobs, batch)[0]
                if batch.num_tokens
                else token_logprobs.logprobs_T.sum() * 0
            )

        go_along = ONE_TOKEN if self._passes_meet else NO_SAMPLES
        passes = [batch if batch.num_tokens else go_along for batch in batches]
        outputs = self._pipeline(passes, loss=loss_of if teaches else None)
        with torch.no_grad():
            for batch, token_logprobs in zip(batches, outputs, strict=True):
                of_batch = token_logprobs if batch.num_tokens else self._forward(batch)
                self._record(batch, of_batch, *self._loss_of(of_batch, batch))

    def _loss_of(
        self, token_logprobs: TokenLogprobs, batch: SampleBatch
    ) -> tuple[Tensor, LossOutput]:
        counts = Totals.of([batch])
        # The loss is on the host, where samples are.
        output = self._loss(token_logprobs.logprobs_T.cpu(), batch, UNDIVIDED)
        loss = output.loss
        if token_logprobs.router_load is not None and token_logprobs.router_load.coefficient:
            # The balance of each micro-batch counts as much as what the loss is a mean over.
            size = counts.num_tokens if output.mean_over == "tokens" else counts.num_sequences
            loss = (
                loss
                + token_logprobs.router_load.coefficient
                * size
                * token_logprobs.router_load.balance_loss().cpu()
            )
        return loss, output

    def _record(
        self, batch: SampleBatch, token_logprobs: TokenLogprobs, loss: Tensor, output: LossOutput
    ) -> None:
        counts = Totals.of([batch])
        self.counts += counts
        self.metrics.add(loss, output, token_logprobs, num_tokens=counts.num_tokens)
        self._mean_over = output.mean_over

    def _backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            self.gradients.end_pass()


def add_all(into: Accumulation, batches: Iterable[SampleBatch], *, teaches: bool = True) -> None:
    """Add several micro-batches in order."""
    for batch in batches:
        into.add(batch, teaches=teaches)
