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

import torch
from torch import Tensor

from rljob_api.layout import stages
from rljob_runtime.models.base import TokenLogprobs
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.packing import Segments
from rljob_runtime.models.router_load import RouterLoad
from rljob_runtime.parallel.groups import ProcessGroups
from rljob_runtime.parallel.pipeline import Hidden, run_pipeline
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.parallel.wire import broadcast, start_sum
from rljob_runtime.parallelize.ends import SharedEnds
from rljob_runtime.sample import SampleBatch

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
    A micro-batch without tokens is left out. All ranks of a replica give the same micro-batches, and
    replicas that share experts equally many with tokens. Raises as `run_pipeline`.
    """
    run = _Run(decoder, groups, batches, temperature, loss)
    run_pipeline(
        [partial(run.stage, stage) for stage in groups.grid.chunks(groups.rank)],
        run.messages(),
        groups[Purpose.PIPELINE],
        trains=loss is not None,
        after_backward=after_backward,
    )
    return run.found_by_all()


class _Run:
    """One call. What stages give each other is flat: hidden states, then sums of the router load."""

    def __init__(
        self,
        decoder: Decoder,
        groups: ProcessGroups,
        batches: Sequence[SampleBatch],
        temperature: float,
        loss: MicroBatchLoss | None,
    ) -> None:
        assert isinstance(decoder.ends, SharedEnds), "policy.parallelize comes first"
        self._decoder, self._ends, self._batches = decoder, decoder.ends, batches
        self._temperature, self._loss = temperature, loss
        self._numbers = [number for number, batch in enumerate(batches) if batch.num_tokens]
        self._pipeline, degrees = groups[Purpose.PIPELINE], groups.grid.degrees
        self._ranks, architecture = degrees.pipeline, decoder.architecture
        self._layers = stages(architecture.num_layers, degrees.pipeline * degrees.virtual_pipeline)
        self._experts, self._hidden = architecture.experts, architecture.hidden_size
        self._first = next(decoder.parameters())
        new = partial(torch.zeros, device=self._first.device)
        self._said_2T = [new(2, batches[number].num_tokens) for number in self._numbers]
        count = self._experts.count if self._experts else 0
        sparse = len(self._experts.layers) if self._experts else 0
        self._tokens_BME = new(len(self._numbers), sparse, count, dtype=torch.int64)
        self._probabilities_BE = new(len(self._numbers), count)

    def messages(self) -> Hidden:
        """What stages give each other of each micro-batch."""
        shares = [self._ends.share_of(Segments.of(self._batches[n])) for n in self._numbers]
        more = 2 * self._probabilities_BE.shape[1]
        return Hidden(
            shapes=[(len(share.outside) * self._hidden + more,) for share in shares],
            dtype=self._first.dtype,
            device=self._first.device,
        )

    def stage(self, stage: int, place: int, given: Tensor | None) -> Tensor:
        """One micro-batch through one stage; of the last one, the loss. place: among those with tokens."""
        if len(self._layers) == 1:
            return self._all_stages(place)
        packing, load = self._decoder.pack(self._batches[self._numbers[place]])
        shared, backbone = self._ends.share(packing), self._decoder.model
        if given is None:
            hidden_SH = self._ends.embed(shared, backbone.embed_tokens.weight)
        else:
            hidden_SH = self._taken(given, load)
        hidden_SH = backbone.run_layers(self._layers[stage], hidden_SH, shared, load)
        if load is not None:
            self._count(stage, place, load)
        if stage < len(self._layers) - 1:
            return hidden_SH.flatten() if load is None else _joined(hidden_SH, load)
        found = self._decoder.read(
            backbone.norm(hidden_SH), packing, temperature=self._temperature, with_entropy=True
        )
        return self._lost(place, replace(found, router_load=load))

    def _all_stages(self, place: int) -> Tensor:
        found = self._decoder.logprobs(
            self._batches[self._numbers[place]], temperature=self._temperature, with_entropy=True
        )
        if found.router_load is not None:
            self._count(0, place, found.router_load)
        return self._lost(place, found)

    def found_by_all(self) -> list[TokenLogprobs]:
        """What the last stage found, on all ranks: 8 bytes a token, and for experts 8 a layer and expert
        from each."""
        last, group = self._ranks - 1, self._pipeline
        sizes = [said_2T.shape[1] for said_2T in self._said_2T]
        if sizes:
            said = broadcast(torch.cat(self._said_2T, dim=1), last, group)
            self._said_2T = list(torch.split(said, sizes, dim=1))
        if self._experts is not None:
            self._tokens_BME = start_sum(self._tokens_BME, group).wait()
            self._probabilities_BE = start_sum(self._probabilities_BE, group).wait()
        places = {number: place for place, number in enumerate(self._numbers)}
        return [self._found(places.get(number)) for number in range(len(self._batches))]

    def _taken(self, given: Tensor, load: RouterLoad | None) -> Tensor:
        """Hidden states of the stage before; its router load goes into this one's."""
        size = len(given) - 2 * self._probabilities_BE.shape[1]
        if load is not None:
            load.go_on_from(given[size:].view(2, -1))
        return given[:size].view(-1, self._hidden)

    def _count(self, stage: int, place: int, load: RouterLoad) -> None:
        assert self._experts is not None
        rows = [i for i, layer in enumerate(self._experts.layers) if layer in self._layers[stage]]
        if rows:
            self._tokens_BME[place, rows] = load.tokens_ME()
        if stage == len(self._layers) - 1:
            self._probabilities_BE[place] = load.sums_over_ranks_2E()[1].detach()

    def _lost(self, place: int, found: TokenLogprobs) -> Tensor:
        """The loss of what was found, which is kept for `found_by_all`."""
        assert found.entropy_T is not None
        self._said_2T[place] = torch.stack([found.logprobs_T.detach(), found.entropy_T])
        if self._loss is None:
            return found.logprobs_T
        return self._loss(self._numbers[place], found)

    def _found(self, place: int | None) -> TokenLogprobs:
        """place: None for a micro-batch without tokens."""
        if place is None:
            none_T, load = torch.zeros(0), RouterLoad(self._experts) if self._experts else None
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T, router_load=load)
        logprobs_T, entropy_T = self._said_2T[place]
        load = None
        if self._experts is not None:
            counted = self._tokens_BME[place], self._probabilities_BE[place]
            load = RouterLoad.of_sums(self._experts, *counted)
        return TokenLogprobs(logprobs_T=logprobs_T, entropy_T=entropy_T, router_load=load)


def _joined(hidden_SH: Tensor, load: RouterLoad) -> Tensor:
    sums_2E = load.sums_2E().to(hidden_SH.device)
    assert sums_2E.dtype == hidden_SH.dtype, f"routers of {sums_2E.dtype}, not {hidden_SH.dtype}"
    return torch.cat([hidden_SH.flatten(), sums_2E.flatten()])
