"""Tokens that go to experts on other ranks and come back: one rank's outputs, gradients and statistics."""

import pytest
import torch
from forked_ranks import on_ranks
from hypothesis import given
from hypothesis import strategies as st
from sent_bytes import SentBytes
from torch import Tensor, distributed

from rljob_runtime.parallel.expert import (
    ExpertLoad,
    combine,
    dispatch,
    dispatch_bytes,
    expert_load,
)

HIDDEN, EXPERTS, TOP = 6, 8, 2
TOKENS = [5, 0, 9, 2]


def layer() -> tuple[Tensor, Tensor, Tensor]:
    """All tokens, the router's matrix, and the experts', the last of which the router never takes."""
    random = torch.Generator().manual_seed(4)
    x = torch.randn(sum(TOKENS), HIDDEN, generator=random)
    router = torch.randn(EXPERTS, HIDDEN, generator=random)
    experts = torch.randn(EXPERTS, HIDDEN, HIDDEN, generator=random) / 3
    return x.requires_grad_(), router.requires_grad_(), experts.requires_grad_()


def choose(x: Tensor, router: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and ids of each token's experts."""
    never = torch.tensor([0.0] * (EXPERTS - 1) + [-1e9])
    weight, expert = ((x @ router.T) + never).softmax(-1).topk(TOP, dim=-1)
    return weight, expert


def one_rank() -> dict[str, Tensor]:
    x, router, experts = layer()
    weight, expert = choose(x, router)
    every = torch.einsum("th,eoh->teo", x, experts).tanh()
    chosen = every.gather(1, expert[..., None].expand(-1, -1, HIDDEN))
    output = (chosen * weight[..., None]).sum(1)
    output.square().sum().backward()
    return {"output": output.detach(), "x": x.grad, "router": router.grad, "experts": experts.grad}


def on_rank(rank: int, ranks: int, tokens: list[int]):
    """This rank's outputs and gradients, its routes' statistics, bytes sent and by the formula."""
    group = distributed.group.WORLD if ranks > 1 else None
    x, router, experts = (part.detach() for part in layer())
    x = x.split(tokens)[rank].clone().requires_grad_()
    router.requires_grad_()
    experts = experts.chunk(ranks)[rank].clone().requires_grad_()
    weight, expert = choose(x, router)
    with SentBytes() as sent:
        copies, route = dispatch(x, expert, EXPERTS, group)
        parts = torch.split(copies, route.copies_e)
        computed = [(part @ own.T).tanh() for part, own in zip(parts, experts, strict=True)]
        output = combine(torch.cat(computed), weight, route)
        output.square().sum().backward()
    formula = dispatch_bytes(route, rank, HIDDEN, item_bytes=4)
    found = {
        "output": output.detach(),
        "x": x.grad,
        "router": router.grad,
        "experts": experts.grad,
    }
    return found, expert_load(route.routed_E, group), (sent.total, formula), route.copies_e


@pytest.mark.parametrize("tokens", [[16], [9, 7], TOKENS, [16, 0, 0, 0]], ids=str)
def test_outputs_and_gradients_are_one_ranks(tokens):
    expected, ranks = one_rank(), len(tokens)

    results = [found for found, *_ in on_ranks(ranks, lambda rank: on_rank(rank, ranks, tokens))]

    for name in ("output", "x", "experts"):
        whole = torch.cat([found[name] for found in results])
        torch.testing.assert_close(whole, expected[name], rtol=1e-5, atol=1e-5)
    router = torch.stack([found["router"] for found in results]).sum(0)
    torch.testing.assert_close(router, expected["router"], rtol=1e-5, atol=1e-5)


def test_statistics_are_of_all_ranks_and_tell_who_is_idle():
    _, expert = choose(*layer()[:2])
    copies = torch.bincount(expert.flatten(), minlength=EXPERTS).tolist()

    results = on_ranks(4, lambda rank: on_rank(rank, 4, TOKENS))

    assert all(load.copies_E == copies for _, load, *_ in results)
    assert [copies_e for *_, each in results for copies_e in each] == copies
    assert results[0][1].idle == copies.count(0) >= 1


def test_bytes_are_the_formulas():
    for _, _, (sent, formula), _ in on_ranks(4, lambda rank: on_rank(rank, 4, TOKENS)):
        assert sent == formula > 0


@given(copies=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_imbalance_is_one_where_all_get_the_same_and_their_number_where_one_gets_all(copies):
    assert ExpertLoad(copies_E=[max(copies) + 1] * len(copies)).imbalance == 1
    assert ExpertLoad(copies_E=[7] + [0] * (len(copies) - 1)).imbalance == len(copies)
    assert ExpertLoad(copies_E=[0] * len(copies)).imbalance == 0
