"""One optimizer step in the making: gradients and metrics of the micro-batches that came so far.

Made by the update engine. The global counts that a mean is taken over are known only once all of the
batch is there, so losses are added up undivided and their sum is divided at the end.
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
"""Log-probs and entropies of a micro-batch."""

NO_SAMPLES = SampleBatch(prompts=[], group_of_B=torch.zeros(0, dtype=torch.int64), responses=[])
ONE_TOKEN = SampleBatch(
    prompts=[torch.zeros(1, dtype=torch.int64)],
    group_of_B=torch.zeros(1, dtype=torch.int64),
    responses=[torch.zeros(1, dtype=torch.int64)],
)
UNDIVIDED = Totals(num_tokens=1, num_sequences=1)


class Pipeline(Protocol):
    """Micro-batches through the stages of several ranks, and backward where there is a loss."""

    def __call__(
        self, batches: Sequence[SampleBatch], *, loss: MicroBatchLoss | None
    ) -> list[TokenLogprobs]:
        """What the model says of each, without gradient, on all ranks."""
        ...


class Accumulation:
    """Gradients go into `gradients`, which live until `discard`. counts: of this replica's samples.

    passes_meet: passes of other replicas wait for this one's. pipeline: takes all micro-batches at once, when
    the last has come; `forward` then is without gradient.
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
        """Take a micro-batch in; one that does not teach has no gradient and is computed forward alone.

        One without tokens goes along with a token that counts in nothing, where passes meet.
        """
        if self._pipeline is not None:
            self._waiting.append((batch, teaches))
            return
        with torch.set_grad_enabled(teaches):
            if self._passes_meet and not batch.num_tokens:
                self._backward(self._forward(ONE_TOKEN).logprobs_T.sum() * 0)
            self._take(batch)

    def close(self) -> None:
        """All samples are in: a rank that had none names its metrics all the same."""
        if self._pipeline is not None:
            for teaches in (True, False):
                self._pass_on([b for b, does in self._waiting if does == teaches], teaches=teaches)
            self._waiting = []
        if self._mean_over is None:
            with torch.set_grad_enabled(self._pipeline is None):
                self._take(NO_SAMPLES)

    def divide(self, totals: Totals) -> None:
        """Make means of the sums. totals: over all replicas."""
        by = totals.num_tokens if self._mean_over == "tokens" else totals.num_sequences
        self.metrics.loss /= max(by, 1)
        self.gradients.divide(max(by, 1))

    def discard(self) -> None:
        """Drop the gradients; the weights have not changed."""
        self.gradients.free()

    def _take(self, batch: SampleBatch) -> None:
        found = self._forward(batch)
        loss, output = self._loss_of(found, batch)
        self._backward(loss)
        self._record(batch, found, loss, output)

    def _pass_on(self, batches: list[SampleBatch], *, teaches: bool) -> None:
        """Micro-batches through the pipeline."""
        assert self._pipeline is not None

        def loss_of(number: int, said: TokenLogprobs) -> Tensor:
            batch = batches[number]
            return self._loss_of(said, batch)[0] if batch.num_tokens else said.logprobs_T.sum() * 0

        go_along = ONE_TOKEN if self._passes_meet else NO_SAMPLES
        passes = [batch if batch.num_tokens else go_along for batch in batches]
        found = self._pipeline(passes, loss=loss_of if teaches else None)
        with torch.no_grad():
            for batch, said in zip(batches, found, strict=True):
                of_batch = said if batch.num_tokens else self._forward(batch)
                self._record(batch, of_batch, *self._loss_of(of_batch, batch))

    def _loss_of(self, found: TokenLogprobs, batch: SampleBatch) -> tuple[Tensor, LossOutput]:
        counts = Totals.of([batch])
        output = self._loss(found.logprobs_T.cpu(), batch, UNDIVIDED)  # samples are on the host
        loss = output.loss
        if found.router_load is not None and found.router_load.coefficient:
            # The balance of each micro-batch counts as much as what the loss is a mean over.
            size = counts.num_tokens if output.mean_over == "tokens" else counts.num_sequences
            loss = (
                loss + found.router_load.coefficient * size * found.router_load.balance_loss().cpu()
            )
        return loss, output

    def _record(
        self, batch: SampleBatch, found: TokenLogprobs, loss: Tensor, output: LossOutput
    ) -> None:
        counts = Totals.of([batch])
        self.counts += counts
        self.metrics.add(loss, output, found, num_tokens=counts.num_tokens)
        self._mean_over = output.mean_over

    def _backward(self, loss: Tensor) -> None:
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            self.gradients.end_pass()


def add_all(into: Accumulation, batches: Iterable[SampleBatch], *, teaches: bool = True) -> None:
    """Take several micro-batches in, in order."""
    for batch in batches:
        into.add(batch, teaches=teaches)
