"""The update engine `torch`: training of a policy, one optimizer step at a time.

Each rank holds the full model, or its shard of one that `parallelize` distributed, and trains on a part of
the batch. Gradients of undivided losses are summed by autograd over micro-batches and by all-reduce over
ranks, and then divided by global counts. Loss and gradient therefore do not depend on how the batch was
split.
"""

# T response tokens of all samples together

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from rljob_api.spec.engines import Optimizer
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.devices.collectives import rank_of, size_of, sum_over_ranks
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.lora import frozen_parameters, merged_weights
from rljob_runtime.models.policy_model import PolicyModel, TokenLogprobs
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import Accumulation, LossFn, Pipeline, add_all
from rljob_runtime.update.learning_rate import learning_rate
from rljob_runtime.update.offload import OffloadedOptimizer
from rljob_runtime.update.optimizers import StepOptimizer, WholeOptimizer
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer
from rljob_runtime.update.precision import check_types
from rljob_runtime.update.state_places import StateRange
from rljob_runtime.update.step_gradients import StepGradients
from rljob_runtime.update.update_ranks import UpdateRanks

log = logging.getLogger(__name__)


class TorchUpdateEngine:
    """Trains a policy. All of the `ranks` call the same methods in the same order.

    If they share a model, the ranks of a replica use the same samples; if passes meet, all use equally many
    micro-batches.

    temperature: that of the rollout, which the log-probs are computed under. total_steps: optimizer steps of
    the full run, for the schedule. purposes: which ranks sum the gradient of each parameter, if ranks share
    the model. swap: moves the optimizer's state to the host between steps; None: it stays. steps: another
    optimizer in place of this project's. step: optimizer steps so far, including skipped ones. version: steps
    that changed the weights. Raises ConfigError for weights of a dtype that it does not train, and
    DeviceMemoryError if weights and optimizer do not fit.
    """

    def __init__(
        self,
        model: PolicyModel,
        *,
        optimizer: Optimizer,
        total_steps: int,
        temperature: float,
        ranks: UpdateRanks | None = None,
        purposes: Mapping[str, Purpose] | None = None,
        ledger: MemoryLedger | None = None,
        swap: HostSwap | None = None,
        steps: StepOptimizer | None = None,
    ) -> None:
        self.step = 0
        self.version = 0
        self._model = model
        self._settings = optimizer
        self._total_steps = total_steps
        self._temperature = temperature
        self._ranks = ranks or UpdateRanks()
        ledger = ledger or MemoryLedger(device="unlimited")
        parameters = dict(model.trained_parameters())
        if steps is None:
            check_types(parameters)
        weights = [*frozen_parameters(model), *parameters.values()]
        ledger.track(MemoryKind.UPDATE_WEIGHTS, map(local_rows, weights))
        self._optimizer: StepOptimizer
        if steps is not None:
            self._optimizer = steps
        elif self._ranks.groups is None:
            self._optimizer = WholeOptimizer(
                parameters, optimizer, group=self._ranks.everyone, ledger=ledger
            )
        else:
            assert purposes is not None, "ranks that share a model need to know who adds up what"
            self._optimizer = ParallelOptimizer(
                parameters,
                purposes,
                optimizer,
                groups=self._ranks.groups,
                everyone=self._ranks.everyone,
                ledger=ledger,
            )
        if swap is not None:
            self._optimizer = OffloadedOptimizer(self._optimizer, swap, ledger)

    def logprobs(self, batch: SampleBatch) -> Tensor:
        """Return log-probs of the batch's response tokens [T], float, without gradient, on the host."""
        with torch.no_grad():
            return self._forward(batch, with_entropy=False).logprobs_T.cpu()

    def begin(self, loss: LossFn) -> Accumulation:
        """Start an optimizer step: `add` micro-batches to it, then `finish` it or `discard` it.

        Raises DeviceMemoryError if the gradients do not fit.
        """
        gradients = self._optimizer.begin()
        return Accumulation(
            lambda batch: self._forward(batch, with_entropy=True),
            loss,
            gradients,
            passes_meet=self._ranks.passes_meet,
            pipeline=self._pipeline(gradients),
        )

    def finish(
        self, begun: Accumulation, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        """Apply the optimizer step to all added micro-batches; returns metrics over the global batch.

        groups_with_signal: of this replica, each group counted in one only. The weights do not change, and
        `skipped` is 1, if all ranks together have fewer than min_groups_with_signal or no response token. The
        same holds, with a gradient_norm of NaN, if a loss or a gradient on any rank is not finite.
        """
        try:
            begun.close()
            totals, signal = self._count(begun.counts, groups_with_signal)
            begun.divide(totals)
            rate = learning_rate(self.step + 1, self._settings, self._total_steps)
            skip = signal < min_groups_with_signal or totals.num_tokens == 0
            norm = 0.0 if skip else self._sum_up(begun)
            skip |= math.isnan(norm)
            self.step += 1  # first, so that one that is cut while it steps counts as after no step
            if not skip:
                self._optimizer.step(rate)
        finally:
            begun.discard()
        self.version += not skip
        return begun.metrics.reduce(self._ranks.data, num_tokens=totals.num_tokens) | {
            "gradient_norm": norm,
            "learning_rate": rate,
            "skipped": float(skip),
        }

    def train(
        self,
        batches: Sequence[SampleBatch],
        loss: LossFn,
        *,
        groups_with_signal: int,
        min_groups_with_signal: int = 0,
        without_gradient: Sequence[SampleBatch] = (),
    ) -> dict[str, float]:
        """Run one optimizer step on complete micro-batches.

        without_gradient: micro-batches whose gradient is known to be zero.
        """
        begun = self.begin(loss)
        try:
            add_all(begun, batches)
            add_all(begun, without_gradient, teaches=False)
            return self.finish(
                begun,
                groups_with_signal=groups_with_signal,
                min_groups_with_signal=min_groups_with_signal,
            )
        finally:
            begun.discard()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's weights by Hugging Face name, with trained adapters merged.

        They are live tensors, to be copied before the next step.
        """
        yield from merged_weights(self._model, dict(self._model.named_hf_parameters()))

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's optimizer state and counters, without the weights: flat tensors by name, not
        copies."""
        counters = {"step": torch.tensor(self.step), "version": torch.tensor(self.version)}
        return self._optimizer.state_dict() | counters

    def state_ranges(self) -> dict[str, StateRange]:
        """Return which items the tensors of `state_dict` belong to; empty if no other layout can load
        them."""
        ranges = self._optimizer.ranges()
        counters = {n: StateRange(kind=n, shape=()) for n in ("step", "version")}
        return ranges | counters if ranges else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state_dict`; with the same weights, bit for bit.

        Raises CheckpointError, with nothing loaded, if names or shapes differ.
        """
        counters = {name: int(state.get(name, 0)) for name in ("step", "version")}
        self._optimizer.load_state_dict({n: v for n, v in state.items() if n not in counters})
        self.step, self.version = counters["step"], counters["version"]

    def _pipeline(self, gradients: StepGradients) -> Pipeline | None:
        """Return the pipeline, if other ranks have other layers of the model."""
        groups = self._ranks.groups
        if groups is None or groups[Purpose.PIPELINE] is None:
            return None
        assert isinstance(self._model, Decoder), "a pipeline has a decoder's stages"
        return partial(
            run_micro_batches,
            self._model,
            groups,
            temperature=self._temperature,
            after_backward=gradients.end_pass,
        )

    def _forward(self, batch: SampleBatch, *, with_entropy: bool) -> TokenLogprobs:
        return self._model.logprobs(batch, temperature=self._temperature, with_entropy=with_entropy)

    def _count(self, local: Totals, groups_with_signal: int) -> tuple[Totals, int]:
        """Return totals over all replicas, and the groups with a signal. [3] → [3], 24 bytes."""
        counts = torch.tensor([local.num_tokens, local.num_sequences, groups_with_signal])
        sum_over_ranks(counts, self._ranks.data)
        tokens, sequences, signal = (int(count) for count in counts)
        return Totals(num_tokens=tokens, num_sequences=sequences), signal

    def _sum_up(self, begun: Accumulation) -> float:
        """Sum and clip; returns the norm of the model's gradient before clipping.

        Returns NaN on all ranks if any rank's loss or gradient is not finite.
        """
        loss, gradients = begun.metrics.loss, begun.gradients
        if not self._all_finite(loss, gradients.norm()):
            return math.nan
        gradients.sum_over_ranks()
        norm = gradients.clip(self._settings.gradient_clip)
        return norm if self._all_finite(loss, norm) else math.nan

    def _all_finite(self, loss: float, norm: float) -> bool:
        """Return whether every rank's loss and gradient norm are finite, identically on all ranks. [ranks] →
        [ranks]."""
        everyone = self._ranks.everyone
        bad = torch.zeros(size_of(everyone), dtype=torch.int64)
        bad[rank_of(everyone)] = not math.isfinite(loss + norm)
        sum_over_ranks(bad, everyone)
        if bad.any():
            log.warning(
                "optimizer step %d: loss or gradient is not finite on update ranks %s (rank %d: loss %s, "
                "gradient norm %s); nothing was applied",
                self.step + 1,
                bad.nonzero().flatten().tolist(),
                rank_of(everyone),
                loss,
                norm,
            )
        return not bad.any()
