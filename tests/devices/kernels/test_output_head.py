"""The output head's log-probs, entropies and gradients, chunk by chunk, in the memory of one chunk."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs, linear_logprobs_reference

POSITIONS, HIDDEN, VOCABULARY = 10, 8, 71
ROWS = torch.tensor([9, 0, 0, 3, 4, 4, 5, 9, 1, 2])
TARGETS = torch.arange(10) * 7
CHUNKS = [VOCABULARY, 3 * VOCABULARY, 5 * VOCABULARY, 1 << 20]
"""Logits at once: one position, three and five of ten, all."""


def drawn(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Hidden states and head."""
    random = torch.Generator().manual_seed(3)
    hidden = torch.randn(POSITIONS, HIDDEN, generator=random, dtype=torch.float64)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=random, dtype=torch.float64)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()


@pytest.mark.parametrize("at_once", CHUNKS)
@pytest.mark.parametrize("with_entropy", [False, True])
def test_chunks_give_what_all_logits_give(at_once: int, with_entropy: bool) -> None:
    settings: dict[str, Any] = {"temperature": 2.0, "with_entropy": with_entropy}
    hidden, weight = drawn()
    inputs = (hidden, weight, TARGETS, ROWS)

    found = linear_logprobs(*inputs, **settings, logits_at_once=at_once)
    gradients = torch.autograd.grad(loss_of(*found), (hidden, weight))

    expected = linear_logprobs_reference(*inputs, **settings)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(loss_of(*expected), (hidden, weight)))


@pytest.mark.parametrize("at_once", CHUNKS)
def test_rows_that_are_never_drawn_have_no_part(at_once: int) -> None:
    hidden, weight = drawn()
    settings: dict[str, Any] = {"temperature": 2.0, "with_entropy": True}

    found = linear_logprobs(
        hidden, weight, TARGETS, ROWS, **settings, rows=64, logits_at_once=at_once
    )
    gradients = torch.autograd.grad(loss_of(*found), (hidden, weight))

    expected = linear_logprobs_reference(hidden, weight[:64], TARGETS, ROWS, **settings)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(loss_of(*expected), (hidden, weight)))
    assert not gradients[1][64:].any()


def loss_of(logprobs: Tensor, entropy: Tensor | None) -> Tensor:
    loss = logprobs.square().sum()
    return loss if entropy is None else loss + (entropy * torch.linspace(-1, 2, len(entropy))).sum()


def test_gradients_are_those_of_finite_differences() -> None:
    hidden, weight = drawn(torch.float64)

    def both(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        named: dict[str, Any] = {
            "temperature": 0.6,
            "with_entropy": True,
            "logits_at_once": 4 * VOCABULARY,
        }
        return linear_logprobs(hidden, weight, TARGETS, ROWS, **named)

    assert torch.autograd.gradcheck(both, (hidden, weight))


@pytest.mark.parametrize("at_once", CHUNKS)
def test_an_entropy_alone_has_a_gradient(at_once: int) -> None:
    hidden, weight = drawn()
    inputs = (hidden, weight, TARGETS, ROWS)

    _, entropy = linear_logprobs(*inputs, with_entropy=True, logits_at_once=at_once)
    gradients = torch.autograd.grad(entropy.sum(), (hidden, weight))

    _, expected = linear_logprobs_reference(*inputs, with_entropy=True)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (hidden, weight)))


def test_a_second_backward_pass_gives_the_same_gradients() -> None:
    hidden, weight = drawn()
    logprobs, _ = linear_logprobs(hidden, weight, TARGETS, ROWS, logits_at_once=4 * VOCABULARY)

    first = torch.autograd.grad(logprobs.sum(), (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(logprobs.sum(), (hidden, weight))

    torch.testing.assert_close(first, second)


def test_a_hidden_state_without_a_target_has_no_gradient() -> None:
    hidden, weight = drawn()

    logprobs, _ = linear_logprobs(hidden, weight, TARGETS, ROWS)
    logprobs.sum().backward()

    assert hidden.grad[[6, 7, 8]].eq(0).all()
    assert hidden.grad[[0, 1, 9]].ne(0).any(-1).all()


def test_bfloat16_has_a_softmax_in_single_precision() -> None:
    hidden, weight = drawn(torch.bfloat16)

    logprobs, entropy = linear_logprobs(hidden, weight, TARGETS, ROWS, with_entropy=True)

    logits = (hidden @ weight.t()).float()
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1)[ROWS, TARGETS])


class Alive(TorchDispatchMode):
    """The most values that tensors made inside have had at one time, those as wide as the vocabulary."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.now = self.most = 0
        self._vocabulary, self._seen = len(weight), {weight.untyped_storage()._cdata}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        output = operator(*args, **(kwargs or {}))
        if isinstance(output, Tensor) and output.dim() and output.shape[-1] == self._vocabulary:
            self._count(output)
        return output

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, values = storage._cdata, storage.nbytes() // tensor.element_size()
        if key not in self._seen:
            self._seen.add(key)
            self.now += values
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._drop, key, values)

    def _drop(self, key: int, values: int) -> None:
        self._seen.discard(key)
        self.now -= values


@pytest.mark.parametrize("trains", [True, False])
def test_one_chunk_of_logits_is_alive_at_a_time(trains: bool, monkeypatch) -> None:
    positions, vocabulary, rows = 64, 512, 8
    monkeypatch.setattr("rljob_runtime.devices.kernels.linear_logprobs.CACHED", 2 * vocabulary)
    hidden = torch.randn(positions, HIDDEN, requires_grad=trains)
    weight = torch.randn(vocabulary, HIDDEN, requires_grad=trains)
    everywhere = torch.arange(positions)

    with Alive(weight) as alive:
        logprobs, _ = linear_logprobs(
            hidden,
            weight,
            everywhere,
            everywhere,
            with_entropy=True,
            logits_at_once=rows * vocabulary,
        )
        if trains:
            logprobs.sum().backward()

    assert rows * vocabulary <= alive.most <= (rows + 2) * vocabulary  # a chunk and a tile
    assert alive.now == 0, "nothing of it is left"
