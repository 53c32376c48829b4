"""Gradients, optimizer state and weights shared by data parallel ranks: one rank's weights, less memory."""

import pytest
import torch
from forked_ranks import on_ranks
from hypothesis import given
from hypothesis import strategies as st
from sent_bytes import SentBytes
from torch import Tensor, distributed, nn

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.adamw import AdamW
from rljob_runtime.update.buckets import plan_buckets
from rljob_runtime.update.gradients import (
    ScatteredGradients,
    WholeGradients,
    clip_gradients,
)
from rljob_runtime.update.zero import ShardedAdamW, zero_bytes, zero_items

SETTINGS = Optimizer(learning_rate=0.1, weight_decay=0.2, gradient_clip=0.5, epsilon=1e-3)
BUCKET_ITEMS, STEPS, PASSES, ROWS = 40, 3, 2, 24


class Net(nn.Module):
    """Parameters of several shapes that no number of ranks divides, one of them never used."""

    inner: Tensor
    bias: Tensor
    outer: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(6)
        shapes = {"inner": (7, 5), "bias": (7,), "outer": (3, 7), "unused": (5,), "scale": (3,)}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=random)))

    def forward(self, x: Tensor) -> Tensor:
        """Sum of squares, undivided."""
        inner = torch.nn.functional.linear(x, self.inner, self.bias).tanh()
        return ((inner @ self.outer.T) * self.scale).square().sum()


def rows(step: int) -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))


def one_rank() -> tuple[dict[str, Tensor], list[float]]:
    """Weights after some steps, and the norms of the gradients before clipping."""
    net, norms = Net(), []
    parameters = dict(net.named_parameters())
    adamw = AdamW(parameters, SETTINGS)
    for step in range(STEPS):
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        (net(rows(step)) / ROWS).backward()
        norms.append(
            float(
                nn.utils.clip_grad_norm_(parameters.values(), SETTINGS.gradient_clip, foreach=False)
            )
        )
        adamw.step(SETTINGS.learning_rate)
    return {name: parameter.detach() for name, parameter in parameters.items()}, norms


class Rank:
    """A rank that trains at a ZeRO stage. report: of its memory at the end."""

    def __init__(self, ranks: int, stage: int) -> None:
        self.group = distributed.group.WORLD if ranks > 1 else None
        self.stage, self.ledger = stage, MemoryLedger(device="test")
        self.net, self.norms = Net(), []
        self.parameters = dict(self.net.named_parameters())
        sizes = {name: parameter.numel() for name, parameter in self.parameters.items()}
        self.buckets = plan_buckets(sizes, ranks, bucket_items=BUCKET_ITEMS)
        self.adamw = ShardedAdamW(
            self.parameters, self.buckets, SETTINGS, group=self.group, ledger=self.ledger
        )

    def train(self, rank: int, ranks: int) -> None:
        for step in range(STEPS):
            own = rows(step)[rank::ranks].chunk(PASSES)
            shards, free = self.gradients(own)
            shards.multiply(1 / ROWS)
            self.norms.append(clip_gradients([shards], SETTINGS.gradient_clip, self.group))
            self.adamw.step(shards, SETTINGS.learning_rate)
            free()

    def gradients(self, batches: tuple[Tensor, ...]):
        kind = ScatteredGradients if self.stage == 2 else WholeGradients
        gradients = kind(self.parameters, self.buckets, self.group, self.ledger)
        for batch in batches:
            self.net(batch).backward()
            if isinstance(gradients, ScatteredGradients):
                gradients.end_pass()
        if isinstance(gradients, ScatteredGradients):
            return gradients.shards, gradients.free
        return gradients.scatter(), gradients.free


def train(rank: int, ranks: int, stage: int):
    """Weights, norms, bytes sent in all steps, bytes of memory by kind."""
    trained = Rank(ranks, stage)
    with SentBytes() as sent:
        trained.train(rank, ranks)
    weights = {name: parameter.detach().clone() for name, parameter in trained.parameters.items()}
    return weights, trained.norms, sent.total, trained.ledger.report().kind_peak_bytes


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_weights_and_norms_are_one_ranks(ranks, stage):
    expected, norms = one_rank()

    results = on_ranks(ranks, lambda rank: train(rank, ranks, stage))

    for weights, found_norms, *_ in results:
        torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)
        assert found_norms == pytest.approx(norms, rel=1e-6)
        assert all(weights[name].equal(results[0][0][name]) for name in weights)


@pytest.mark.parametrize("stage", [1, 2])
def test_memory_and_bytes_are_the_formulas(stage):
    ranks = 4
    sizes = {name: parameter.numel() for name, parameter in Net().named_parameters()}
    buckets = plan_buckets(sizes, ranks, bucket_items=BUCKET_ITEMS)
    norm_bytes = 4 * 2 * (ranks - 1) / ranks  # the sum of squares

    for rank, (*_, sent, peaks) in enumerate(
        on_ranks(ranks, lambda rank: train(rank, ranks, stage))
    ):
        items = zero_items(buckets, stage, rank)
        assert peaks[MemoryKind.UPDATE_WEIGHTS] == 4 * items.weights
        assert peaks[MemoryKind.GRADIENTS] == 4 * items.gradients
        assert peaks[MemoryKind.OPTIMIZER] == 4 * items.moments + 4  # and the count of steps
        step = zero_bytes(buckets, stage, passes=PASSES, item_bytes=4)
        assert sent == STEPS * (step + norm_bytes)


def test_weights_that_lie_in_buckets_count_as_what_they_were_before():
    ledger, parameters = MemoryLedger(device="test"), dict(Net().named_parameters())
    ledger.track(MemoryKind.CRITIC_WEIGHTS, parameters.values())
    held = ledger.report().kind_bytes
    buckets = plan_buckets({name: p.numel() for name, p in parameters.items()}, 1)

    adamw = ShardedAdamW(parameters, buckets, SETTINGS, group=None, ledger=ledger)

    assert adamw.first.keys() <= parameters.keys()
    weights = {k: n for k, n in ledger.report().kind_bytes.items() if "weights" in k}
    assert weights == held


def test_gradients_that_are_added_up_during_the_last_pass_are_one_ranks():
    net = Net()
    net(rows(0)).backward()
    expected = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    norm = float(nn.utils.get_total_norm(expected.values(), foreach=False))

    def summed(rank: int) -> tuple[dict[str, Tensor], float, int]:
        net, group = Net(), distributed.group.WORLD
        parameters = dict(net.named_parameters())
        buckets = plan_buckets({n: p.numel() for n, p in parameters.items()}, 4, bucket_items=30)
        gradients = WholeGradients(parameters, buckets, group, MemoryLedger(device="test"))
        first, last = rows(0)[rank::4].chunk(2)
        net(first).backward()
        with SentBytes() as sent:
            kept = gradients.sum_over_ranks(net(last).backward)
        assert clip_gradients([kept], torch.inf, group) == pytest.approx(norm, rel=1e-5)
        formula = zero_bytes(buckets, 0, passes=2, item_bytes=4)
        return {name: p.grad.clone() for name, p in parameters.items()}, sent.total, formula

    for found, sent, formula in on_ranks(4, summed):
        assert found.pop("unused").count_nonzero() == 0
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert sent == formula


def test_a_ranks_state_goes_back_into_the_rank_that_it_came_from():
    def resumed(rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        first = Rank(2, stage=1)
        first.train(rank, 2)
        state = {name: value.clone() for name, value in first.adamw.state_dict().items()}
        second = Rank(2, stage=1)
        second.adamw.load_state_dict(state)
        return state, second.adamw.state_dict()

    for saved, loaded in on_ranks(2, resumed):
        assert all(loaded[name].equal(saved[name]) for name in saved)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    ranks=st.integers(1, 5),
    bucket_items=st.integers(1, 80),
)
def test_every_item_is_in_one_bucket_and_owned_by_one_rank(sizes, ranks, bucket_items):
    named = {f"p{i}": size for i, size in enumerate(sizes)}

    buckets = plan_buckets(named, ranks, bucket_items=bucket_items)

    owned = [
        (piece.name, item)
        for rank in range(ranks)
        for bucket in buckets
        for piece in bucket.owned_slices(rank)
        for item in range(piece.start, piece.stop)
    ]
    assert sorted(owned) == sorted((n, i) for n, size in named.items() for i in range(size))
    assert all(bucket.items % ranks == 0 for bucket in buckets)
    names = [piece.name for bucket in buckets for piece in bucket.slices]
    assert names == list(reversed(named))
    assert all(
        sum(p.stop for p in bucket.slices) <= bucket_items or len(bucket.slices) == 1
        for bucket in buckets
    )
