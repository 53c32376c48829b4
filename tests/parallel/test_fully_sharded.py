"""Weights that data parallel ranks share (FSDP2): one rank's weights, a part of the memory."""

import pytest
import torch
from forked_ranks import on_ranks
from sent_bytes import SentBytes
from torch import Tensor, distributed, nn

from rljob_api.spec.engines import Optimizer
from rljob_runtime.parallel.fully_sharded import (
    fully_sharded_bytes,
    shard_weights,
    take_gradients,
    weight_shards,
)
from rljob_runtime.update.adamw import AdamW

SETTINGS = Optimizer(learning_rate=0.1, weight_decay=0.2, epsilon=1e-3)
RANKS, STEPS, PASSES, ROWS, WIDTH = 2, 2, 2, 12, 8


class Net(nn.Module):
    """Two blocks and a scale, entered by a method that is not `forward`."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(7)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scale = nn.Parameter(torch.empty(WIDTH))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)

    def loss(self, x: Tensor) -> Tensor:
        """Sum of squares, undivided."""
        for block in self.blocks:
            x = block(x).tanh()
        return (x * self.scale).square().sum()


def rows(step: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))


def one_rank() -> dict[str, Tensor]:
    net = Net()
    parameters = dict(net.named_parameters())
    adamw = AdamW(parameters, SETTINGS)
    for step in range(STEPS):
        net.zero_grad()
        net.loss(rows(step)).backward()
        adamw.step(SETTINGS.learning_rate)
    return {name: parameter.detach() for name, parameter in parameters.items()}


def train(rank: int) -> tuple[dict[str, Tensor], int, float]:
    """This rank's rows after some steps, the items of its optimizer's state, and bytes sent."""
    net = Net()
    shard_weights(net, net.blocks, distributed.group.WORLD, forward="loss")
    parameters = dict(net.named_parameters())
    shards = weight_shards(parameters)
    adamw = AdamW(shards, SETTINGS)
    with SentBytes() as sent:
        for step in range(STEPS):
            net.zero_grad()
            for micro_batch in rows(step)[rank::RANKS].chunk(PASSES):
                net.loss(micro_batch).backward()
            take_gradients(parameters, shards)
            adamw.step(SETTINGS.learning_rate)
    state = sum(value.numel() for value in adamw.state_dict().values())
    return {name: shard.clone() for name, shard in shards.items()}, state, sent.total


def test_a_step_after_a_pass_without_gradients_is_seen_by_the_next_pass():
    @torch.no_grad()
    def losses(net: Net, stepped: dict[str, Tensor]) -> list[float]:
        found = [float(net.loss(rows(0)))]
        for tensor in stepped.values():
            tensor.mul_(0.5)
        return [*found, float(net.loss(rows(0)))]

    def losses_on_ranks(rank: int) -> list[float]:
        net = Net()
        shard_weights(net, net.blocks, distributed.group.WORLD, forward="loss")
        return losses(net, weight_shards(dict(net.named_parameters())))

    alone = Net()
    expected = losses(alone, dict(alone.named_parameters()))

    assert on_ranks(RANKS, losses_on_ranks) == [pytest.approx(expected)] * RANKS


def test_weights_are_one_ranks_and_each_rank_keeps_its_part_of_the_state():
    expected = one_rank()
    items = sum(weight.numel() for weight in expected.values())

    (first, state, sent), (second, *_) = on_ranks(RANKS, train)

    whole = {name: torch.cat([first[name], second[name]]) for name in first}
    torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-6)
    assert state == 2 * items // RANKS + 1
    assert sent == STEPS * fully_sharded_bytes(
        items, RANKS, passes=PASSES, item_bytes=4, outside_blocks=WIDTH
    )
