"""Micro-batches through a decoder whose layers pipeline ranks share, forward and backward.

Called by whoever trains or scores with what `policy.load_parallel` gives, in place of a forward and a
backward pass a micro-batch; on one pipeline rank it is just these, one after the other. The schedule is
1F1B, or its interleaved form where a rank has several stages.
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
from rljob_runtime.parallel.pipeline import Hidden, run_pipeline
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.sample import SampleBatch

MicroBatchLoss = Callable[[int, TokenLogprobs], Tensor]
"""Number of a micro-batch and what the model says of its tokens → its undivided loss, one number."""


def run_micro_batches(
    decoder: Decoder,
    groups: ProcessGroups,
    batches: Sequence[SampleBatch],
    *,
    temperature: float,
    loss: MicroBatchLoss | None = None,
    after_backward: Callable[[], None] = lambda: None,
) -> list[TokenLogprobs]:
    """What the model says of each micro-batch's tokens with entropies, without gradient and the same on all
    ranks of the pipeline: loss and metrics can be computed of it again on each.

    loss: called on the last stage alone; each is run backward, and parameters add their gradients up. None:
    a forward pass alone. after_backward: called after each backward pass through one of this rank's stages.
    A micro-batch without tokens is left out. All ranks of a replica give the same micro-batches, and all
    replicas equally many with tokens where they share experts, or ZeRO is 2 or 3. Raises as `run_pipeline`.
    """
    with_tokens = [number for number, batch in enumerate(batches) if batch.num_tokens]
    run = _Run(decoder, groups, {number: batches[number] for number in with_tokens}, temperature)
    run_pipeline(
        [partial(run.stage, loss, stage) for stage in groups.grid.chunks(groups.rank)],
        run.messages(),
        groups[Purpose.PIPELINE],
        trains=loss is not None,
        after_backward=after_backward,
    )
    run.findings.share(groups[Purpose.PIPELINE])
    places = {number: place for place, number in enumerate(with_tokens)}
    return [run.findings.of(places.get(number)) for number in range(len(batches))]


def score(
    decoder: Decoder,
    groups: ProcessGroups,
    batch: SampleBatch,
    *,
    temperature: float,
    with_entropy: bool = False,
) -> TokenLogprobs:
    """A decoder's `logprobs` where it has a pipeline: without gradient, with entropies in any case."""
    assert not torch.is_grad_enabled(), "run_micro_batches trains a pipeline"
    return run_micro_batches(decoder, groups, [batch], temperature=temperature)[0]


class _Run:
    """Stages of one call. What they give each other is flat: hidden states, then sums of the router load.

    batches: those with tokens, by number; a place counts these alone.
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
        self._sums = 2 * architecture.experts.count if architecture.experts else 0
        self._first = next(decoder.parameters())
        # Sums of the routers are wider than hidden states in bfloat16, and the two go together.
        wide = torch.promote_types(self._first.dtype, torch.float32)
        self._sent_dtype = wide if self._sums else self._first.dtype
        sizes = [batch.num_tokens for batch in self._batches]
        self.findings = _Findings(architecture.experts, sizes, self._first.device)

    def messages(self) -> Hidden:
        """What stages give each other of each micro-batch."""
        shares = [self._ends.share_of(Segments.of(batch)) for batch in self._batches]
        return Hidden(
            shapes=[(len(share.outside) * self._hidden + self._sums,) for share in shares],
            dtype=self._sent_dtype,
            device=self._first.device,
        )

    def stage(
        self, loss: MicroBatchLoss | None, stage: int, place: int, given: Tensor | None
    ) -> Tensor:
        """One micro-batch through one stage; of the last one, the loss, or log-probs where there is none."""
        found = self._through(stage, place, given)
        if isinstance(found, Tensor):
            return found
        self.findings.say(place, found)
        return found.logprobs_T if loss is None else loss(self._numbers[place], found)

    def _through(self, stage: int, place: int, given: Tensor | None) -> Tensor | TokenLogprobs:
        """What goes to the next stage, and of the last one, what the model says."""
        batch, last = self._batches[place], len(self._layers) - 1
        options: dict[str, Any] = {"temperature": self._temperature, "with_entropy": True}
        if last == 0:
            found = self._decoder.logprobs(batch, **options)
            self.findings.count(place, self._layers[0], found.router_load)
            return found
        packing, load = self._decoder.pack(batch, self._layers[stage])
        shared, backbone = self._ends.share(packing), self._decoder.model
        hidden_SH = (
            backbone.embed(shared, self._ends) if given is None else self._taken(given, load)
        )
        hidden_SH = backbone.run_layers(self._layers[stage], hidden_SH, shared, load)
        self.findings.count(place, self._layers[stage], load)
        if stage < last:
            return _joined(hidden_SH, load)
        found = self._decoder.read(backbone.norm(hidden_SH), packing, **options)
        return replace(found, router_load=load)

    def _taken(self, given: Tensor, load: RouterLoad | None) -> Tensor:
        """Hidden states of the stage before; its router load goes into this one's."""
        size = len(given) - self._sums
        if load is not None:
            load.go_on_from(given[size:].view(2, -1))
        return given[:size].view(-1, self._hidden).to(self._first.dtype)


def _joined(hidden_SH: Tensor, load: RouterLoad | None) -> Tensor:
    if load is None:
        return hidden_SH.flatten()
    sums_2E = load.sums_2E().to(hidden_SH.device)
    return torch.cat([hidden_SH.flatten().to(sums_2E.dtype), sums_2E.flatten()])


class _Findings:
    """What the last stage says of micro-batches, and what each stage counts of its layers' experts.

    sizes: response tokens of each micro-batch.
    """

    def __init__(
        self, experts: MoeArchitecture | None, sizes: list[int], device: torch.device
    ) -> None:
        self._experts, self._sizes = experts, sizes
        self._said_2T = torch.zeros(2, sum(sizes), device=device)
        if experts is not None:
            shape = len(sizes), len(experts.layers), experts.count
            self._tokens_BME = torch.zeros(shape, dtype=torch.int64, device=device)
            self._probabilities_BE = torch.zeros(len(sizes), experts.count, device=device)

    def count(self, place: int, layers: range, load: RouterLoad | None) -> None:
        """Take a stage's layers in; the probabilities are those of the stage with the last layer."""
        if self._experts is None or load is None:
            return
        rows = [row for row, layer in enumerate(self._experts.layers) if layer in layers]
        if rows:
            self._tokens_BME[place, rows] = load.tokens_ME()
        self._probabilities_BE[place] = load.sums_over_ranks_2E()[1].detach()

    def say(self, place: int, found: TokenLogprobs) -> None:
        """Take what the model says in."""
        assert found.entropy_T is not None, "asked for"
        said_2T = torch.stack([found.logprobs_T.detach(), found.entropy_T])
        torch.split(self._said_2T, self._sizes, dim=1)[place].copy_(said_2T)

    def share(self, group: ProcessGroup | None) -> None:
        """Tell all ranks of the pipeline: 8 bytes a token; 8 a layer, expert and micro-batch."""
        last = size_of(group) - 1
        if self._sizes:
            self._said_2T = broadcast(self._said_2T, last, group)
        if self._sizes and self._experts is not None:
            self._tokens_BME = start_sum(self._tokens_BME, group).wait()
            self._probabilities_BE = broadcast(self._probabilities_BE, last, group)

    def of(self, place: int | None) -> TokenLogprobs:
        """Of one micro-batch, once shared; place: None for one without tokens."""
        experts = self._experts
        if place is None:
            none_T, empty = torch.zeros(0), RouterLoad(experts) if experts else None
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T, router_load=empty)
        logprobs_T, entropy_T = torch.split(self._said_2T, self._sizes, dim=1)[place]
        load = None
        if experts is not None:
            counted = self._tokens_BME[place], self._probabilities_BE[place]
            load = RouterLoad.of_sums(experts, *counted)
        return TokenLogprobs(logprobs_T=logprobs_T, entropy_T=entropy_T, router_load=load)
