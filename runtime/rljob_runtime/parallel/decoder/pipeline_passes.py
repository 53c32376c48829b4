"""Run micro-batches through a decoder whose layers pipeline ranks share, forward and backward.

Called to train or score with the decoder of `policy.load_parallel`, in place of a forward and a backward pass
a micro-batch; on one pipeline rank it runs just these, one after the other. The schedule is 1F1B, or its
interleaved form where a rank has several stages.
"""

# S tokens of one rank, H hidden, T response tokens
# B micro-batches, M layers with experts, E experts

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.model.layout import stages
from rljob_runtime.devices.collectives import size_of
from rljob_runtime.devices.wire import broadcast, start_sum
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.packing import Segments
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.parallel.decoder.vocabulary_ends import SharedEnds
from rljob_runtime.parallel.pipeline import HiddenStates, run_pipeline
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.sample import SampleBatch

MicroBatchLoss = Callable[[int, TokenLogprobs], Tensor]
"""Takes the index of a micro-batch and the model's log-probs of its tokens; returns its undivided loss, one
number."""


def run_micro_batches(
    decoder: Decoder,
    groups: ProcessGroups,
    batches: Sequence[SampleBatch],
    *,
    temperature: float,
    loss: MicroBatchLoss | None = None,
    after_backward: Callable[[], None] = lambda: None,
) -> list[TokenLogprobs]:
    """Return the model's log-probs and entropies of each micro-batch's tokens, without gradient. They are the
    same on all ranks of the pipeline, so that each can compute loss and metrics from them.

    loss: called on the last stage alone; each loss is run backward, and parameters accumulate their
    gradients. None: a forward pass alone. after_backward: called after each backward pass through one of this
    rank's stages. A micro-batch without tokens is left out. All ranks of a replica pass the same
    micro-batches. All replicas pass equally many with tokens where they share experts, or ZeRO is 2 or 3.
    Raises as `run_pipeline`.
    """
    with_tokens = [number for number, batch in enumerate(batches) if batch.num_tokens]
    run = _PipelineCall(
        decoder, groups, {number: batches[number] for number in with_tokens}, temperature
    )
    run_pipeline(
        [partial(run.stage, loss, stage) for stage in groups.grid.chunks(groups.rank)],
        run.messages(),
        groups[Purpose.PIPELINE],
        trains=loss is not None,
        after_backward=after_backward,
    )
    run.results.share(groups[Purpose.PIPELINE])
    index_of = {number: index for index, number in enumerate(with_tokens)}
    return [run.results.of(index_of.get(number)) for number in range(len(batches))]


def score(
    decoder: Decoder,
    groups: ProcessGroups,
    batch: SampleBatch,
    *,
    temperature: float,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """Compute a decoder's `logprobs` where it has a pipeline: without gradient, always with entropies."""
    assert not torch.is_grad_enabled(), "run_micro_batches trains a pipeline"
    return run_micro_batches(decoder, groups, [batch], temperature=temperature)[0]


class _PipelineCall:
    """The stages of one call. The tensors between stages are flat: hidden states, then sums of the router
    load.

    batches: those with tokens, by number; an `index` counts these alone.
    """

    def __init__(
        self,
        decoder: Decoder,
        groups: ProcessGroups,
        batches: dict[int, SampleBatch],
        temperature: float,
    ) -> None:
        assert isinstance(decoder.ends, SharedEnds), "policy.parallelize comes first"
        self._decoder, self._ends, self._temperature = decoder, decoder.ends, temperature
        self._numbers, self._batches = list(batches), list(batches.values())
        architecture, degrees = decoder.architecture, groups.grid.degrees
        self._layers = stages(architecture.num_layers, degrees.pipeline * degrees.virtual_pipeline)
        self._hidden = architecture.hidden_size
        self._num_sums = 2 * architecture.experts.count if architecture.experts else 0
        self._first = next(decoder.parameters())
        # Sums of the routers are wider than hidden states in bfloat16, and the two go together.
        wide_dtype = torch.promote_types(self._first.dtype, torch.float32)
        self._sent_dtype = wide_dtype if self._num_sums else self._first.dtype
        sizes = [batch.num_tokens for batch in self._batches]
        self.results = _PipelineResults(architecture.experts, sizes, self._first.device)

    def messages(self) -> HiddenStates:
        """Return the shapes of the tensors between stages, for each micro-batch."""
        shares = [self._ends.share_of(Segments.of(batch)) for batch in self._batches]
        return HiddenStates(
            shapes=[(len(share.outside) * self._hidden + self._num_sums,) for share in shares],
            dtype=self._sent_dtype,
            device=self._first.device,
        )

    def stage(
        self, loss: MicroBatchLoss | None, stage: int, index: int, received: Tensor | None
    ) -> Tensor:
        """Run one micro-batch through one stage. Return its output; of the last stage, the loss, or log-probs
        where there is none."""
        output = self._through(stage, index, received)
        if isinstance(output, Tensor):
            return output
        self.results.store_logprobs(index, output)
        return output.logprobs_T if loss is None else loss(self._numbers[index], output)

    def _through(self, stage: int, index: int, received: Tensor | None) -> Tensor | TokenLogprobs:
        """Return the tensor for the next stage; of the last stage, the model's log-probs."""
        batch, last = self._batches[index], len(self._layers) - 1
        options: dict[str, Any] = {"temperature": self._temperature, "with_entropy": True}
        if last == 0:
            logprobs = self._decoder.logprobs(batch, **options)
            self.results.count(index, self._layers[0], logprobs.router_load)
            return logprobs
        packing, load = self._decoder.pack(batch, self._layers[stage])
        shared, backbone = self._ends.share(packing), self._decoder.model
        hidden_SH = (
            backbone.embed(shared, self._ends)
            if received is None
            else self._received_hidden(received, load)
        )
        hidden_SH = backbone.run_layers(self._layers[stage], hidden_SH, shared, load)
        self.results.count(index, self._layers[stage], load)
        if stage < last:
            return _joined(hidden_SH, load)
        logprobs = self._decoder.read(backbone.norm(hidden_SH), packing, **options)
        return replace(logprobs, router_load=load)

    def _received_hidden(self, received: Tensor, load: RouterLoad | None) -> Tensor:
        """Return the hidden states of the previous stage; its router load is added to this stage's."""
        size = len(received) - self._num_sums
        if load is not None:
            load.go_on_from(received[size:].view(2, -1))
        return received[:size].view(-1, self._hidden).to(self._first.dtype)


def _joined(hidden_SH: Tensor, load: RouterLoad | None) -> Tensor:
    if load is None:
        return hidden_SH.flatten()
    sums_2E = load.sums_2E().to(hidden_SH.device)
    return torch.cat([hidden_SH.flatten().to(sums_2E.dtype), sums_2E.flatten()])


class _PipelineResults:
    """The last stage's log-probs of micro-batches, and each stage's counts of its layers' experts.

    sizes: response tokens of each micro-batch.
    """

    def __init__(
        self, experts: MoeArchitecture | None, sizes: list[int], device: torch.device
    ) -> None:
        self._experts, self._sizes = experts, sizes
        self._logprobs_2T = torch.zeros(2, sum(sizes), device=device)
        if experts is not None:
            shape = len(sizes), len(experts.layers), experts.count
            self._tokens_BME = torch.zeros(shape, dtype=torch.int64, device=device)
            self._probabilities_BE = torch.zeros(len(sizes), experts.count, device=device)

    def count(self, index: int, layers: range, load: RouterLoad | None) -> None:
        """Add a stage's layers; the probabilities are those of the stage with the last layer."""
        if self._experts is None or load is None:
            return
        rows = [row for row, layer in enumerate(self._experts.layers) if layer in layers]
        if rows:
            self._tokens_BME[index, rows] = load.tokens_ME()
        self._probabilities_BE[index] = load.sums_over_ranks_2E()[1].detach()

    def store_logprobs(self, index: int, logprobs: TokenLogprobs) -> None:
        """Store the model's log-probs of a micro-batch."""
        assert logprobs.entropy_T is not None, "asked for"
        logprobs_2T = torch.stack([logprobs.logprobs_T.detach(), logprobs.entropy_T])
        torch.split(self._logprobs_2T, self._sizes, dim=1)[index].copy_(logprobs_2T)

    def share(self, group: ProcessGroup | None) -> None:
        """Broadcast to all ranks of the pipeline: 8 bytes a token; 8 a layer, expert and micro-batch."""
        last = size_of(group) - 1
        if self._sizes:
            self._logprobs_2T = broadcast(self._logprobs_2T, last, group)
        if self._sizes and self._experts is not None:
            self._tokens_BME = start_sum(self._tokens_BME, group).wait()
            self._probabilities_BE = broadcast(self._probabilities_BE, last, group)

    def of(self, index: int | None) -> TokenLogprobs:
        """Return the results of one micro-batch, once shared; index: None for one without tokens."""
        experts = self._experts
        if index is None:
            none_T, empty = torch.zeros(0), RouterLoad(experts) if experts else None
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T, router_load=empty)
        logprobs_T, entropy_T = torch.split(self._logprobs_2T, self._sizes, dim=1)[index]
        load = None
        if experts is not None:
            counted = self._tokens_BME[index], self._probabilities_BE[index]
            load = RouterLoad.of_sums(experts, *counted)
        return TokenLogprobs(logprobs_T=logprobs_T, entropy_T=entropy_T, router_load=load)
