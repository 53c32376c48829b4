"""A small sparse transformer of all primitives, on grids of eight ranks: one rank's loss and gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked_ranks import on_ranks
from torch import Tensor, distributed

from rljob_api.model.layout import share
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.devices.collectives import size_of, sum_over_ranks
from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs
from rljob_runtime.parallel.context import ZigZag, contiguous
from rljob_runtime.parallel.expert import combine, dispatch
from rljob_runtime.parallel.pipeline import HiddenStates, run_pipeline
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid
from rljob_runtime.parallel.ring import ring_attention
from rljob_runtime.parallel.sequence import gather_rows
from rljob_runtime.parallel.tensor import column_linear, padded_tokens, row_linear
from rljob_runtime.parallel.ulysses import ulysses_attention
from rljob_runtime.parallel.vocabulary import VocabularyShare, embed_tokens
from rljob_runtime.update.gradients import GradientShards, clip_gradients

VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 19, 8, 4, 2, 4
EXPERTS, TOP, LAYERS = 4, 2, 3
BATCHES = [(5, 9, 1), (12, 3), (7,), (2, 6, 4)]
"""Lengths of the samples of each micro-batch."""

CUTS = {"q": 0, "o": 1, "embedding": 0, "head": 0}
"""The dim that tensor ranks share of a parameter; others are whole, but for key heads and experts."""


def weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(9)
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (VOCABULARY, WIDTH),
        "head": (VOCABULARY, WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"{layer}.norm": (WIDTH,),
            f"{layer}.q": (HEADS * HEAD_DIM, WIDTH),
            f"{layer}.k": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.v": (KV_HEADS * HEAD_DIM, WIDTH),
            f"{layer}.o": (WIDTH, HEADS * HEAD_DIM),
            f"{layer}.o_bias": (WIDTH,),
            f"{layer}.router": (EXPERTS, WIDTH),
            f"{layer}.experts": (EXPERTS, WIDTH, WIDTH),
        }
    return {name: torch.randn(shape, generator=random) / 2 for name, shape in shapes.items()}


def samples(lengths: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of packed samples, the tokens that they predict, and how much each counts."""
    random = torch.Generator().manual_seed(sum(lengths))
    tokens, targets = torch.randint(0, VOCABULARY, (2, sum(lengths)), generator=random)
    return tokens, targets, torch.randn(sum(lengths), generator=random)


def causal(lengths: tuple[int, ...]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = zip(*(torch.split(x, [*lengths]) for x in (query, key, value)), strict=True)
        return torch.cat([over_itself(*part) for part in parts])

    def over_itself(*heads: Tensor) -> Tensor:
        q, k, v = (x.transpose(0, 1)[None] for x in heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return mixed[0].transpose(0, 1)

    return attend


class Model:
    """One rank's part; without groups, the whole on one rank."""

    def __init__(self, grid: RankGrid, groups: ProcessGroups | None) -> None:
        self.grid, self.place = grid, grid.coordinates(groups.rank if groups else 0)
        self.group = {p: groups[p] if groups else None for p in Purpose}
        self.tensor = self.group[Purpose.TENSOR]
        self.vocabulary = VocabularyShare.of(VOCABULARY, self.tensor)
        self.weights = {n: self.cut(n, w).clone().requires_grad_() for n, w in weights().items()}
        self.batches = BATCHES[self.place.data :: grid.degrees.data]

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a parameter, or of its gradient."""
        kind, degrees = name.split(".")[-1], self.grid.degrees
        if kind == "experts":
            return whole.chunk(degrees.expert)[self.place.expert]
        if kind in ("embedding", "head"):
            return whole[self.vocabulary.ids.start : self.vocabulary.ids.stop]
        if kind in ("k", "v"):
            heads = min(degrees.tensor, KV_HEADS)
            return whole.chunk(heads)[self.place.tensor * heads // degrees.tensor]
        return whole.chunk(degrees.tensor, CUTS[kind])[self.place.tensor] if kind in CUTS else whole

    def own(self, number: int) -> Tensor:
        """Which of a micro-batch's tokens this context rank holds."""
        lengths, degrees = self.batches[number], self.grid.degrees
        if degrees.context_algorithm == "ring":
            return torch.tensor(
                ZigZag(lengths=lengths, ranks=degrees.context).tokens(self.place.context)
            )
        return torch.tensor(contiguous(sum(lengths), degrees.context)[self.place.context])

    def shape(self, number: int) -> tuple[int, int]:
        tensor = self.grid.degrees.tensor
        return padded_tokens(len(self.own(number)), tensor) // tensor, WIDTH

    def run(self, stage: int, number: int, given: Tensor | None) -> Tensor:
        """One stage on one micro-batch; the last gives the loss of this rank's tokens."""
        stages = self.grid.degrees.pipeline * self.grid.degrees.virtual_pipeline
        tokens, targets, counts = (x[self.own(number)] for x in samples(self.batches[number]))
        if given is None:
            padding = padded_tokens(len(tokens), self.grid.degrees.tensor) - len(tokens)
            padded = F.pad(tokens, (0, padding))
            given = embed_tokens(padded, self.weights["embedding"], self.vocabulary)
        x = given
        for layer in share(LAYERS, stage, stages):
            x = self.layer(layer, number, x)
        if stage < stages - 1:
            return x
        hidden, head = gather_rows(x, self.tensor), self.weights["head"]
        rows = torch.arange(len(tokens))
        logprobs, _ = linear_logprobs(
            hidden, head, targets, rows, temperature=0.9, ids=self.vocabulary, logits_at_once=40
        )
        return (logprobs * counts).sum()

    def layer(self, layer: int, number: int, x: Tensor) -> Tensor:
        w = {name: self.weights[f"{layer}.{name}"] for name in
             ("norm", "q", "k", "v", "o", "o_bias", "router", "experts")}  # fmt: skip
        normed = F.rms_norm(x, [WIDTH], w["norm"])
        heads = column_linear(normed, [w["q"], w["k"], w["v"]], [None] * 3, self.tensor)
        real = len(self.own(number))
        mixed = self.attention(number, *(h[:real].view(real, -1, HEAD_DIM) for h in heads))
        mixed = F.pad(mixed.flatten(1), (0, 0, 0, len(heads[0]) - real))
        x = x + row_linear(mixed, w["o"], w["o_bias"], self.tensor)
        weight, expert = (x @ w["router"].T).softmax(-1).topk(TOP)
        copies, route = dispatch(x, expert, EXPERTS, self.group[Purpose.EXPERT])
        parts = zip(torch.split(copies, route.copies_e), w["experts"], strict=True)
        return x + combine(torch.cat([(part @ e.T).tanh() for part, e in parts]), weight, route)

    def attention(self, number: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        lengths, degrees = self.batches[number], self.grid.degrees
        group = self.group[Purpose.CONTEXT]
        if degrees.context_algorithm == "ring":
            layout = ZigZag(lengths=lengths, ranks=degrees.context)
            return ring_attention(query, key, value, layout, group)
        tokens = [len(part) for part in contiguous(sum(lengths), degrees.context)]
        return ulysses_attention(query, key, value, causal(lengths), tokens, group)

    def train(self) -> Tensor:
        """The loss of all ranks; gradients are then those of all ranks."""
        chunks = [
            lambda number, given, stage=stage: self.run(stage, number, given)
            for stage in self.grid.chunks(self.grid_rank())
        ]
        shapes = [self.shape(number) for number in range(len(self.batches))]
        hidden = HiddenStates(shapes=shapes, dtype=torch.float32, device=torch.device("cpu"))
        losses = run_pipeline(chunks, hidden, self.group[Purpose.PIPELINE])
        return torch.stack(losses).sum() if losses else torch.zeros(())

    def grid_rank(self) -> int:
        return distributed.get_rank() if distributed.is_initialized() else 0

    def gradients(self) -> dict[str, Tensor]:
        """Of this rank's parts, added up over all who hold them."""
        found = {name: w.grad for name, w in self.weights.items() if w.grad is not None}
        for name, gradient in found.items():
            sum_over_ranks(gradient.view(-1), self.group[self.purpose(name)])
        return found

    def norm(self, gradients: dict[str, Tensor]) -> float:
        """Of all ranks' gradients."""
        shards = [
            GradientShards([gradient], copies=size_of(self.group[self.purpose(name)]))
            for name, gradient in gradients.items()
        ]
        return clip_gradients(shards, torch.inf, distributed.group.WORLD)

    def purpose(self, name: str) -> Purpose:
        kind = name.split(".")[-1]
        if kind == "experts":
            return Purpose.EXPERT_GRADIENTS
        if kind in ("k", "v"):
            return Purpose.KEY_HEAD_GRADIENTS
        return Purpose.CUT_GRADIENTS if kind in CUTS else Purpose.WHOLE_GRADIENTS


GRIDS: dict[str, Any] = {
    "ring, tensor, pipeline, experts": {
        "tensor": 2, "pipeline": 2, "context": 2, "expert": 2, "context_algorithm": "ring",
    },
    "ulysses, tensor, data, experts over data and context": {
        "data": 2, "tensor": 2, "context": 2, "expert": 4, "context_algorithm": "ulysses",
    },
    "tensor with repeated key heads, experts over data": {"data": 2, "tensor": 4, "expert": 2},
    "ring, data, interleaved pipeline, experts": {
        "data": 2, "context": 2, "pipeline": 2, "virtual_pipeline": 2, "expert": 2,
        "context_algorithm": "ring",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GRIDS)
def test_loss_and_gradients_are_one_ranks(name):
    degrees = UpdateDegrees.model_validate({"data": 1, **GRIDS[name]})
    grid = RankGrid(degrees, kv_heads=KV_HEADS)
    alone = Model(RankGrid(UpdateDegrees(data=1, context_algorithm="ulysses")), None)
    loss = alone.train()

    def train(rank: int) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor], float]:
        model = Model(grid, ProcessGroups(grid, timeout_seconds=60))
        own_loss, gradients = model.train(), model.gradients()
        expected = {n: model.cut(n, w.grad) for n, w in alone.weights.items() if n in gradients}
        return own_loss, gradients, expected, model.norm(gradients)

    results = on_ranks(grid.size, train, seconds=120)

    ends = [own for rank, (own, *_) in enumerate(results) if grid.coordinates(rank).tensor == 0]
    torch.testing.assert_close(torch.stack(ends).sum(), loss, rtol=1e-5, atol=1e-5)
    norm = float(
        torch.nn.utils.get_total_norm([w.grad for w in alone.weights.values()], foreach=False)
    )
    for _, gradients, expected, found_norm in results:
        torch.testing.assert_close(gradients, expected, rtol=1e-5, atol=1e-5)
        assert found_norm == pytest.approx(norm, rel=1e-5)
    assert {name for _, held, *_ in results for name in held} == set(alone.weights)
