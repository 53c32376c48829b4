"""Attention over ragged samples that ranks share: one rank's outputs and gradients, bytes by formula."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked_ranks import on_ranks
from hypothesis import given
from hypothesis import strategies as st
from npu_operators import VERSIONS, npu_operators
from sent_bytes import SentBytes
from torch import Tensor, distributed

from rljob_runtime.parallel.context import ZigZag, contiguous
from rljob_runtime.parallel.ring import ring_attention, ring_attention_bytes
from rljob_runtime.parallel.ulysses import ulysses_attention, ulysses_bytes

LENGTHS = (13, 1, 40, 5, 8)
D = 8
HEADS = [(4, 4), (4, 2), (8, 1)]


def drawn(heads: int, kv_heads: int) -> list[Tensor]:
    """Queries, keys, values of all tokens, and the output's gradient."""
    random = torch.Generator().manual_seed(5)
    widths = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(sum(LENGTHS), width, D, generator=random) for width in widths]


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each sample over itself, with all of its scores, on one rank."""
    outputs = []
    for q, k, v in zip(*(torch.split(x, [*LENGTHS]) for x in (query, key, value)), strict=True):
        repeats = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        later = torch.ones(len(q), len(q), dtype=torch.bool).triu(1)
        scores = torch.einsum("qad,kad->aqk", q, k) / D**0.5
        outputs.append(
            torch.einsum("aqk,kad->qad", F.softmax(scores.masked_fill(later, -torch.inf), -1), v)
        )
    return torch.cat(outputs)


def one_rank(heads: int, kv_heads: int) -> list[Tensor]:
    *inputs, up = drawn(heads, kv_heads)
    inputs = [x.requires_grad_() for x in inputs]
    output = causal(*inputs)
    output.backward(up)
    return [output.detach(), *(x.grad for x in inputs)]


def group_of(ranks: int) -> distributed.ProcessGroup | None:
    return distributed.group.WORLD if ranks > 1 else None


def put_together(parts: list[list[Tensor]], places: list[list[int]]) -> list[Tensor]:
    order = torch.tensor([place for each in places for place in each]).argsort()
    return [torch.cat(part)[order] for part in zip(*parts, strict=True)]


def on_ring(
    rank: int, ranks: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.float32
) -> tuple[list[Tensor], float]:
    layout = ZigZag(lengths=LENGTHS, ranks=ranks)
    *inputs, up = (x[layout.tokens(rank)].to(dtype) for x in drawn(heads, kv_heads))
    query, key, value = inputs = [x.requires_grad_() for x in inputs]
    with SentBytes() as sent:
        output = ring_attention(query, key, value, layout, group_of(ranks))
        output.backward(up)
    return [output.detach(), *(x.grad for x in inputs)], sent.total


def on_ulysses(rank: int, ranks: int, heads: int, kv_heads: int) -> tuple[list[Tensor], float]:
    parts = contiguous(sum(LENGTHS), ranks)
    *inputs, up = (x[list(parts[rank])] for x in drawn(heads, kv_heads))
    query, key, value = inputs = [x.requires_grad_() for x in inputs]
    tokens = [len(part) for part in parts]
    with SentBytes() as sent:
        output = ulysses_attention(query, key, value, causal, tokens, group_of(ranks))
        output.backward(up)
    return [output.detach(), *(x.grad for x in inputs)], sent.total


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ring_attention_is_one_ranks(ranks, heads):
    layout = ZigZag(lengths=LENGTHS, ranks=ranks)

    results = on_ranks(ranks, lambda rank: on_ring(rank, ranks, *heads)[0])

    found = put_together(results, [layout.tokens(rank) for rank in range(ranks)])
    torch.testing.assert_close(found, one_rank(*heads), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*overriding a previously registered kernel")
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
def test_ring_attention_by_the_operators_of_ascend_is_one_ranks(ranks, heads, monkeypatch):
    monkeypatch.setattr("rljob_runtime.devices.kernels.block_attention.on_npu", lambda tensor: True)
    layout = ZigZag(lengths=LENGTHS, ranks=ranks)

    with npu_operators(VERSIONS[0]):
        results = on_ranks(ranks, lambda rank: on_ring(rank, ranks, *heads)[0])

    found = put_together(results, [layout.tokens(rank) for rank in range(ranks)])
    torch.testing.assert_close(found, one_rank(*heads), rtol=1e-5, atol=1e-5)


def test_a_ring_of_bfloat16_rounds_its_outputs_and_not_its_sums():
    layout = ZigZag(lengths=LENGTHS, ranks=4)

    results = on_ranks(4, lambda rank: on_ring(rank, 4, 4, 2, torch.bfloat16)[0])

    found = put_together(results, [layout.tokens(rank) for rank in range(4)])
    assert all(part.dtype == torch.bfloat16 for part in found)
    for part, expected in zip(found, one_rank(4, 2), strict=True):
        torch.testing.assert_close(part.float(), expected, rtol=0.02, atol=0.03)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ulysses_is_one_ranks(ranks, heads):
    places = [list(part) for part in contiguous(sum(LENGTHS), ranks)]

    results = on_ranks(ranks, lambda rank: on_ulysses(rank, ranks, *heads)[0])

    found = put_together(results, places)
    torch.testing.assert_close(found, one_rank(*heads), rtol=1e-5, atol=1e-5)


def test_a_rank_without_tokens_goes_along():
    layout = ZigZag(lengths=(1, 0), ranks=3)
    token = torch.arange(2.0 * D).view(1, 2, D)

    def outputs(rank: int) -> list[Tensor]:
        held = token[: layout.num_tokens(rank)].clone().requires_grad_()
        ring = ring_attention(held, held, held, layout, distributed.group.WORLD)
        tokens = [layout.num_tokens(other) for other in range(3)]
        heads = held.repeat(1, 3, 1)
        ulysses = ulysses_attention(
            heads, heads, heads, lambda q, k, v: v, tokens, distributed.group.WORLD
        )
        (ring.sum() + ulysses.sum()).backward()
        return [ring.detach(), ulysses.detach()]

    results = on_ranks(3, outputs)

    assert sorted(len(ring) for ring, _ in results) == [0, 0, 1]
    for ring, ulysses in results:
        torch.testing.assert_close(ring, token[: len(ring)])
        torch.testing.assert_close(ulysses, token[: len(ring)].repeat(1, 3, 1))


def test_bytes_are_the_formulas():
    ranks, heads, kv_heads = 4, 8, 2
    layout = ZigZag(lengths=LENGTHS, ranks=ranks)
    tokens = [len(part) for part in contiguous(sum(LENGTHS), ranks)]
    sizes: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": D, "item_bytes": 4}

    ring = on_ranks(ranks, lambda rank: on_ring(rank, ranks, heads, kv_heads)[1])
    ulysses = on_ranks(ranks, lambda rank: on_ulysses(rank, ranks, heads, kv_heads)[1])

    assert ring == [
        ring_attention_bytes(layout, rank, kv_heads * D, item_bytes=4) for rank in range(ranks)
    ]
    assert ulysses == [ulysses_bytes(tokens, rank, **sizes) for rank in range(ranks)]


def attended_pairs(layout: ZigZag, rank: int) -> int:
    """Pairs of query and key that the rank's queries attend to: its work."""
    ends = pairwise(accumulate(layout.lengths, initial=0))
    first = [start for start, end in ends for _ in range(end - start)]
    return sum(place - first[place] + 1 for place in layout.tokens(rank))


lengths = st.lists(st.integers(0, 40), min_size=1, max_size=6).map(tuple)


@given(lengths=lengths, ranks=st.integers(1, 6))
def test_zig_zag_gives_every_token_to_one_rank(lengths, ranks):
    layout = ZigZag(lengths=lengths, ranks=ranks)

    tokens = [layout.tokens(rank) for rank in range(ranks)]

    assert sorted(place for part in tokens for place in part) == list(range(sum(lengths)))
    assert [len(part) for part in tokens] == [layout.num_tokens(rank) for rank in range(ranks)]
    assert all(part == sorted(part) for part in tokens)
    assert [layout.chunk_pairs(rank)[-1].end for rank in range(ranks)] == [len(p) for p in tokens]


@given(lengths=lengths, ranks=st.integers(1, 6))
def test_zig_zag_gives_all_ranks_the_same_work_but_for_single_tokens(lengths, ranks):
    layout = ZigZag(lengths=lengths, ranks=ranks)

    work = [attended_pairs(layout, rank) for rank in range(ranks)]

    whole = sum(length * (length + 1) // 2 for length in lengths)
    assert sum(work) == whole
    assert max(work) - min(work) <= 2 * sum(lengths)  # two tokens of each sample at most
