"""The update engine `torch`: data parallel training of a policy, one optimizer step at a time.

Each rank holds the whole model and a part of the batch. Every micro-batch's loss is already divided
by global counts, so that gradients only add up: over micro-batches by autograd, over ranks by one
all-reduce. Loss and gradient therefore do not depend on how the batch was split.
"""

# T response tokens of all samples together

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.engines import Optimizer
from rljob_runtime.algorithms.base import LossOutput, Totals
from rljob_runtime.backends.collectives import rank_of, size_of, sum_over_ranks
from rljob_runtime.backends.ledger import MemoryKind, MemoryLedger
from rljob_runtime.engines.adamw import AdamW
from rljob_runtime.engines.gradients import GradientBuffer
from rljob_runtime.engines.metric_sums import MetricSums
from rljob_runtime.engines.schedule import learning_rate
from rljob_runtime.errors import ConfigError, WorkerError
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.sample import SampleBatch

Work = tuple[SampleBatch, bool]
"""A micro-batch, and whether it has a gradient."""
LossFn = Callable[[Tensor, SampleBatch, Totals], LossOutput]

NO_SAMPLES = SampleBatch(prompts=[], group_of_B=torch.zeros(0, dtype=torch.int64), responses=[])


class UpdateEngine:
    """Trains a policy. All ranks of `group` call the same methods in the same order.

    temperature: that of the rollout, which the log-probs are taken under. total_steps: optimizer
    steps of the whole run, for the schedule. step: calls of `train` so far. version: steps that
    changed the weights. Raises ConfigError for weights of less than single precision, and
    DeviceMemoryError when weights and optimizer do not fit.
    """

    def __init__(
        self,
        model: PolicyModel,
        *,
        optimizer: Optimizer,
        total_steps: int,
        temperature: float,
        group: ProcessGroup | None = None,
        ledger: MemoryLedger | None = None,
    ) -> None:
        self.step = 0
        self.version = 0
        self._model = model
        self._settings = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._group = group
        self._ledger = ledger or MemoryLedger(device="unlimited")
        self._parameters = dict(model.named_hf_parameters())
        _check_types(self._parameters)
        self._ledger.track(MemoryKind.UPDATE_WEIGHTS, self._parameters.values())
        moments_bytes = 2 * sum(p.nbytes for p in self._parameters.values())
        self._ledger.require(MemoryKind.OPTIMIZER, moments_bytes)
        self._adamw = AdamW(self._parameters, optimizer)
        self._ledger.track(MemoryKind.OPTIMIZER, self._adamw.state_dict().values())

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Log-probs of the batch's response tokens [T], float, without gradient."""
        with torch.no_grad():
            return self._forward(batch, with_entropy=False)[0]

    def train(
        self,
        batches: Sequence[SampleBatch],
        loss: LossFn,
        *,
        groups_with_signal: int,
        min_groups_with_signal: int = 0,
        without_gradient: Sequence[SampleBatch] = (),
    ) -> dict[str, float]:
        """One optimizer step on this rank's micro-batches; returns metrics over the global batch.

        groups_with_signal: of this rank, each group counted on one rank only. without_gradient:
        micro-batches whose gradient is known to be zero: they count in totals and metrics, and are
        computed forward alone. The weights stay as they are, and `skipped` is 1, when all ranks
        together have fewer than min_groups_with_signal or no response token. Raises WorkerError on
        every rank, with nothing applied, when a loss or a gradient is not finite.
        """
        # A rank without samples still names every metric, because all ranks reduce the same vector.
        work = [(batch, True) for batch in batches] or [(NO_SAMPLES, True)]
        work += [(batch, False) for batch in without_gradient]
        totals, signal = self._count([batch for batch, _ in work], groups_with_signal)
        rate = learning_rate(self.step + 1, self._settings, self._total_steps)
        skip = signal < min_groups_with_signal or totals.num_tokens == 0
        if skip:
            metrics, norm = self._accumulate(work, loss, totals, backward=False), 0.0
        else:
            metrics, norm = self._optimize(work, loss, totals, rate)
        self.step += 1
        self.version += not skip
        return metrics.reduce(self._group, num_tokens=totals.num_tokens) | {
            "gradient_norm": norm,
            "learning_rate": rate,
            "skipped": float(skip),
        }

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by Hugging Face name: the live tensors, to be copied before the next step."""
        for name, parameter in self._parameters.items():
            yield name, parameter.detach()

    def state_dict(self) -> dict[str, Tensor]:
        """Flat tensors by name: optimizer state and counters, without the weights. Not copies."""
        counters = {"step": torch.tensor(self.step), "version": torch.tensor(self.version)}
        return self._adamw.state_dict() | counters

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; together with the same weights, bit for bit.

        Raises CheckpointError, with nothing loaded, if names or shapes differ.
        """
        counters = {name: int(state.get(name, 0)) for name in ("step", "version")}
        self._adamw.load_state_dict({n: v for n, v in state.items() if n not in counters})
        self.step, self.version = counters["step"], counters["version"]

    def _forward(self, batch: SampleBatch, *, with_entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probs [T] and entropies [T] (zeros unless asked for)."""
        if batch.num_tokens == 0:
            return torch.zeros(0), torch.zeros(0)
        result = self._model.logprobs(
            batch, temperature=self._temperature, with_entropy=with_entropy
        )
        if result.entropy_T is None:
            return result.logprobs_T, torch.zeros_like(result.logprobs_T)
        return result.logprobs_T, result.entropy_T

    def _count(self, batches: Sequence[SampleBatch], groups_with_signal: int) -> tuple[Totals, int]:
        """Totals over all ranks, and the groups with a signal. [3] → [3], 24 bytes."""
        here = Totals.of(batches)
        counts = torch.tensor([here.num_tokens, here.num_sequences, groups_with_signal])
        sum_over_ranks(counts, self._group)
        tokens, sequences, signal = (int(count) for count in counts)
        return Totals(num_tokens=tokens, num_sequences=sequences), signal

    def _accumulate(
        self, work: Sequence[Work], loss: LossFn, totals: Totals, *, backward: bool
    ) -> MetricSums:
        """Run all micro-batches; gradients go where the parameters' `grad` points to."""
        metrics = MetricSums()
        for batch, teaches in work:
            with torch.set_grad_enabled(backward and teaches):
                logprobs_T, entropy_T = self._forward(batch, with_entropy=True)
                output = loss(logprobs_T, batch, totals)
            if output.loss.requires_grad:
                output.loss.backward()  # type: ignore[no-untyped-call]
            metrics.add(output, entropy=entropy_T.sum())
        return metrics

    def _optimize(
        self, work: Sequence[Work], loss: LossFn, totals: Totals, rate: float
    ) -> tuple[MetricSums, float]:
        """Accumulate, all-reduce, clip, step; returns the gradient's norm before clipping."""
        gradients = GradientBuffer(self._parameters, self._ledger)
        try:
            metrics = self._accumulate(work, loss, totals, backward=True)
            self._check_finite(metrics.loss, gradients.norm())
            gradients.sum_over(self._group)
            norm = gradients.clip(self._settings.gradient_clip)
            self._check_finite(metrics.loss, norm)
            self._adamw.step(rate)
        finally:
            gradients.free()
        return metrics, norm

    def _check_finite(self, loss: float, norm: float) -> None:
        """Raise WorkerError on every rank if a rank's loss or gradient norm is not finite."""
        bad = torch.zeros(size_of(self._group), dtype=torch.int64)
        rank = rank_of(self._group)
        bad[rank] = not math.isfinite(loss + norm)
        sum_over_ranks(bad, self._group)
        if bad.any():
            raise WorkerError(
                f"optimizer step {self.step + 1}: loss or gradient is not finite on update ranks "
                f"{bad.nonzero().flatten().tolist()} (rank {rank}: loss {loss}, gradient norm "
                f"{norm}); nothing was applied. Look for huge rewards or log-probs of -inf, lower "
                "spec.update.optimizer.learningRate, and resume from the last checkpoint"
            )


def _check_types(parameters: Mapping[str, Tensor]) -> None:
    types = {parameter.dtype for parameter in parameters.values()}
    if len(types) != 1 or not types <= {torch.float32, torch.float64}:
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
        raise ConfigError(
            f"the update engine `torch` cannot train weights of type {named} (spec.update.dtype): "
            "AdamW's small steps are lost below single precision; use float32"
        )
