"""Matrices cut over ranks, with tokens cut between them: one rank's loss and gradients, bytes by formula."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from forked_ranks import on_ranks
from sent_bytes import SentBytes
from torch import Tensor, distributed

from rljob_runtime.parallel.sequence import gather_rows
from rljob_runtime.parallel.tensor import (
    column_linear,
    column_linear_bytes,
    row_linear,
    row_linear_bytes,
)

TOKENS, HIDDEN, INNER = 12, 8, 16


def block() -> dict[str, Tensor]:
    """A norm's weight and a gated feed-forward with biases, and its input."""
    random = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).div_(3).requires_grad_()

    return {
        "x": drawn(TOKENS, HIDDEN),
        "norm": drawn(HIDDEN),
        "gate": drawn(INNER, HIDDEN),
        "gate_bias": drawn(INNER),
        "up": drawn(INNER, HIDDEN),
        "down": drawn(HIDDEN, INNER),
        "down_bias": drawn(HIDDEN),
    }


def one_rank() -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients without any cut."""
    b = block()
    normed = F.rms_norm(b["x"], [HIDDEN], b["norm"])
    inner = F.silu(F.linear(normed, b["gate"], b["gate_bias"])) * F.linear(normed, b["up"])
    loss = (b["x"] + F.linear(inner, b["down"], b["down_bias"])).square().sum()
    loss.backward()
    return loss.detach(), {name: value.grad for name, value in b.items()}


def cut(rank: int, ranks: int) -> tuple[Tensor, dict[str, Tensor], float]:
    """Loss, the gradients put together again, and bytes sent for forward and backward."""
    group = distributed.group.WORLD if ranks > 1 else None
    dims = {"x": 0, "gate": 0, "gate_bias": 0, "up": 0, "down": 1}
    b = {
        name: (value.chunk(ranks, dims[name])[rank] if name in dims else value)
        .detach()
        .requires_grad_()
        for name, value in block().items()
    }
    with SentBytes() as sent:
        normed = F.rms_norm(b["x"], [HIDDEN], b["norm"])
        gate, up = column_linear(normed, [b["gate"], b["up"]], [b["gate_bias"], None], group)
        output = b["x"] + row_linear(F.silu(gate) * up, b["down"], b["down_bias"], group)
        loss = output.square().sum()
        loss.backward()
    gradients: dict[str, Any] = {}
    for name, value in b.items():
        whole = [torch.empty_like(value) for _ in range(ranks)]
        distributed.all_gather(whole, value.grad)
        gradients[name] = torch.cat(whole, dims[name]) if name in dims else sum(whole)
    total = loss.detach()
    distributed.all_reduce(total)
    return total, gradients, sent.total


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_cut_feed_forward_has_one_ranks_loss_and_gradients(ranks):
    loss, gradients = one_rank()

    for found_loss, found, _ in on_ranks(ranks, lambda rank: cut(rank, ranks)):
        torch.testing.assert_close(found_loss, loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-5)


def test_a_cut_feed_forward_sends_what_the_formulas_say():
    (_, _, sent), *_ = on_ranks(4, lambda rank: cut(rank, 4))

    column = column_linear_bytes(TOKENS, HIDDEN, 4, item_bytes=4)
    row = row_linear_bytes(TOKENS, HIDDEN, 4, item_bytes=4)
    assert sent == column + row == 5 * 3 * (TOKENS // 4) * HIDDEN * 4


def test_gathered_rows_that_each_rank_uses_for_itself_get_the_sum_of_their_gradients():
    def gradient(rank: int) -> Tensor:
        part = torch.full((2, 3), float(rank), requires_grad=True)
        whole = gather_rows(part, distributed.group.WORLD)
        (whole * (rank + 1)).sum().backward()
        return part.grad

    for found in on_ranks(3, gradient):
        assert found.equal(torch.full((2, 3), 1.0 + 2.0 + 3.0))
