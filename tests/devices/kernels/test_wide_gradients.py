"""Weights whose gradients `linear` adds up: those in bfloat16 in float32, large ones in place."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.devices.kernels import linear as kernels_linear
from rljob_runtime.devices.kernels.linear import embedding, grouped_linear, linear
from rljob_runtime.devices.kernels.matmul_add import CHUNK_ROWS, num_row_chunks

PASSES = 3
ENDS = torch.tensor([2, 2, 5])


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def wide(weight, *, buffer):
    """The weight as an engine prepares it; buffer: whether its gradient is there beforehand."""
    weight.requires_grad_().grad_dtype = torch.float32
    if buffer:
        weight.grad = torch.zeros_like(weight, dtype=torch.float32)
    return weight


def rows(seed):
    return drawn(5, 6, seed=seed), drawn(5, 4, seed=10 + seed)


def in_groups(x, weight):
    starts = [0, *ENDS.tolist()]
    parts = [F.linear(x[a:b], w) for a, b, w in zip(starts, starts[1:], weight, strict=False)]
    return torch.cat(parts)


CASES = {
    "matrix": (linear, F.linear, (4, 6)),
    "experts": (lambda x, weight: grouped_linear(x, weight, ENDS), in_groups, (3, 4, 6)),
}


@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_gradient_is_the_sum_of_float32_products(case, buffer):
    ours, plain, shape = CASES[case]
    weight = wide(drawn(*shape, seed=99), buffer=buffer)
    held = weight.grad
    exact = weight.detach().double().requires_grad_()

    for seed in range(PASSES):
        x, gradient = rows(seed)
        x.requires_grad_()
        output = ours(x, weight)
        output.backward(gradient)
        doubled = x.detach().double().requires_grad_()
        plain(doubled, exact).backward(gradient.double())

        assert output.dtype == x.grad.dtype == torch.bfloat16
        torch.testing.assert_close(x.grad.double(), doubled.grad, rtol=2**-7, atol=2**-7)

    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=1e-6, atol=1e-6)
    assert weight.grad is held or not buffer


@pytest.mark.parametrize("buffer", [True, False])
def test_a_token_that_comes_often_is_counted_each_time(buffer):
    weight = wide(torch.zeros(3, 2).bfloat16(), buffer=buffer)

    for _ in range(PASSES):
        embedding(torch.ones(1000, dtype=torch.int64), weight).sum().backward()

    assert weight.grad.tolist() == [[0, 0], [3000, 3000], [0, 0]]  # bfloat16 ends at 256 + 1


def test_a_bias_gets_its_gradient_in_float32():
    weight, bias = (wide(drawn(*shape), buffer=False) for shape in ((4, 6), (4,)))
    x, gradient = rows(1)

    linear(x, weight, bias).backward(gradient)

    torch.testing.assert_close(bias.grad, gradient.float().sum(0), rtol=1e-6, atol=1e-6)


def test_other_weights_are_left_to_torch():
    weight = drawn(4, 6).requires_grad_()
    x, gradient = rows(1)

    linear(x, weight).backward(gradient)
    expected = weight.grad.clone()
    weight.grad = None
    F.linear(x, weight).backward(gradient)

    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.equal(expected)


@pytest.mark.parametrize("rows", [2 * CHUNK_ROWS, 3 * CHUNK_ROWS + 1, 20 * CHUNK_ROWS + 19])
def test_a_small_gradient_over_many_rows_is_that_of_torch(rows):
    draw = torch.Generator().manual_seed(rows)
    x, gradient = (torch.randn(rows, width, generator=draw) for width in (6, 4))
    weight, bias = (
        torch.randn(*shape, generator=draw).requires_grad_() for shape in ((4, 6), (4,))
    )
    exact, exact_bias = (part.detach().double().requires_grad_() for part in (weight, bias))
    x.requires_grad_()
    doubled = x.detach().double().requires_grad_()

    output = linear(x, weight, bias)
    output.backward(gradient)
    F.linear(doubled, exact, exact_bias).backward(gradient.double())

    assert num_row_chunks(x, weight) > 1
    torch.testing.assert_close(x.grad.double(), doubled.grad, rtol=1e-6, atol=1e-5)
    error = rows * 2**-24  # half a unit in the last place, of partial sums up to √rows
    torch.testing.assert_close(weight.grad.double(), exact.grad, rtol=0, atol=error)
    torch.testing.assert_close(bias.grad.double(), exact_bias.grad, rtol=0, atol=error)


LARGE_CASES = {
    "matrix": (linear, F.linear, (96, 64), lambda: torch.randn(40, 64)),
    "experts": (
        lambda x, weight: grouped_linear(x, weight, ENDS), in_groups, (3, 64, 64),
        lambda: torch.randn(5, 64),
    ),
    "embedding": (embedding, F.embedding, (96, 64), lambda: torch.randint(0, 9, (40,))),
}  # fmt: skip


@pytest.mark.parametrize("case", LARGE_CASES)
def test_a_large_gradient_is_added_to_its_buffer_in_place(case, monkeypatch):
    monkeypatch.setattr(kernels_linear, "LARGE", 1 << 10)
    ours, plain, shape, draw = LARGE_CASES[case]
    weight = torch.randn(shape, requires_grad=True)
    weight.grad = held = torch.ones_like(weight)
    other = weight.detach().clone().requires_grad_()
    made = []

    for _ in range(PASSES):
        x = draw()
        with MadeOfSize(weight.numel(), made):
            ours(x, weight).square().sum().backward()
        plain(x, other).square().sum().backward()

    assert weight.grad is held
    assert not made
    torch.testing.assert_close(weight.grad - 1, other.grad, rtol=1e-5, atol=1e-4)


def test_a_gradient_that_a_hook_waits_for_is_left_to_autograd(monkeypatch):
    monkeypatch.setattr(kernels_linear, "LARGE", 1 << 10)
    weight = torch.randn(96, 64, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    heard = []
    weight.register_post_accumulate_grad_hook(lambda tensor: heard.append(tensor.grad.sum()))

    linear(torch.ones(2, 64), weight).sum().backward()

    assert heard == [2.0 * weight.numel()]


class MadeOfSize(TorchDispatchMode):
    """Names the operators that made new tensors of so many values."""

    def __init__(self, items, made):
        super().__init__()
        self._items, self._made = items, made

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        new = isinstance(output, torch.Tensor) and not any(
            isinstance(x, torch.Tensor)
            and x.untyped_storage()._cdata == output.untyped_storage()._cdata
            for x in args
        )
        if new and output.numel() == self._items:
            self._made.append(operator)
        return output
