"""Attention over blocks of keys, on CPU and by Ascend's operators: the reference's, whose blocks add up."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from npu_operators import VERSIONS, npu_operators
from real_devices import DEVICES, skip_without
from torch import Tensor

from rljob_runtime.cli.bring_up.kernel_cases import TOLERANCE
from rljob_runtime.devices.kernels.block_attention import (
    Block,
    attend_blocks,
    attend_blocks_ascend,
    attend_blocks_backward,
    attend_blocks_backward_ascend,
    attend_blocks_backward_reference,
    attend_blocks_reference,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*overriding a previously registered kernel")
TOKENS, PREFIX, SCALE = 11, 4, 0.3
OWN = [Block(slice(0, 6), slice(0, 6), True), Block(slice(6, 11), slice(6, 11), True)]
"""Two samples over themselves."""
BLOCKS = [*OWN, Block(slice(0, 6), slice(11, 15), False), Block(slice(6, 11), slice(11, 15), False)]
"""And both over a prefix that they share, which lies behind them."""
HEADS = [(4, 4), (6, 2), (3, 1)]


def drawn(heads: int, kv_heads: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values of all tokens, and the output's gradient."""
    random = torch.Generator().manual_seed(4)
    shapes = [(TOKENS, heads), (TOKENS + PREFIX, kv_heads), (TOKENS + PREFIX, kv_heads)]
    shapes.append(shapes[0])
    return [torch.randn(*shape, 8, generator=random).to(dtype) for shape in shapes]


def computed(
    attend: Callable[..., Iterator[tuple[Tensor, ...]]],
    backward: Callable[..., Iterator[tuple[Tensor, ...]]],
    heads: tuple[int, int],
    dtype: torch.dtype,
    device: str = "cpu",
) -> list[Tensor]:
    """Outputs, log-sums and gradients of each block, one behind the other."""
    *inputs, up = (x.to(device) for x in drawn(*heads, dtype))
    forward = list(attend(*inputs, BLOCKS, scale=SCALE))
    output, log_sum = whole(*inputs)
    back = backward(up, *inputs, output.to(dtype), log_sum.float(), BLOCKS, scale=SCALE)
    assert len(forward) == len(BLOCKS)
    return [
        part.float().cpu() for found in (forward, list(back)) for each in found for part in each
    ]


def whole(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum over all blocks of a query, of all scores in double precision."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(repeats, 1) for x in (key, value))
    scores = torch.einsum("qad,kad->qak", query.double(), key) * SCALE
    seen = torch.zeros(TOKENS, TOKENS + PREFIX, dtype=torch.bool, device=query.device)
    for block in BLOCKS:
        ones = torch.ones(block.sizes, dtype=torch.bool, device=query.device)
        seen[block.queries, block.keys] = ones.tril() if block.causal else ones
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    return torch.einsum("qak,kad->qad", scores.softmax(-1), value), scores.logsumexp(-1)


def assert_reference(found: list[Tensor], heads: tuple[int, int], dtype: torch.dtype) -> None:
    forms = (attend_blocks_reference, attend_blocks_backward_reference)
    for part, expected in zip(found, computed(*forms, heads, dtype), strict=True):
        limit = TOLERANCE[dtype] * float(expected.abs().max())
        torch.testing.assert_close(part, expected, rtol=0.0, atol=limit)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_blocks_on_cpu_are_the_references(heads, dtype):
    found = computed(attend_blocks, attend_blocks_backward, heads, dtype)

    assert_reference(found, heads, dtype)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_blocks_by_the_operators_of_ascend_are_the_references(version, heads, dtype):
    with npu_operators(version):
        found = computed(attend_blocks_ascend, attend_blocks_backward_ascend, heads, dtype)

    assert_reference(found, heads, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_blocks_on_the_device_are_the_references(device, heads, dtype):
    found = computed(attend_blocks, attend_blocks_backward, heads, dtype, skip_without(device))

    assert_reference(found, heads, dtype)


def test_gradients_of_all_blocks_are_those_of_attention_over_all_keys():
    *inputs, up = drawn(6, 2, torch.float64)
    inputs = [x.requires_grad_() for x in inputs]
    output, log_sum = whole(*inputs)
    output.backward(up)

    found = [torch.zeros_like(x, dtype=torch.float32) for x in inputs]
    tensors: list[Any] = [x.detach().float() for x in (up, *inputs, output, log_sum)]
    for block, parts in zip(
        BLOCKS,
        attend_blocks_backward_reference(*tensors, BLOCKS, scale=SCALE),  # type: ignore[arg-type, misc]
        strict=True,
    ):
        for into, rows, part in zip(
            found, (block.queries, block.keys, block.keys), parts, strict=True
        ):
            into[rows] += part

    expected = [x.grad.float() for x in inputs]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_blocks_of_a_kind_are_one_call(monkeypatch):
    calls = []
    with npu_operators(VERSIONS[0]):
        operator = torch.ops.npu.npu_fusion_attention
        monkeypatch.setattr(
            torch.ops.npu,
            "npu_fusion_attention",
            lambda *x, **named: calls.append(named["actual_seq_qlen"]) or operator(*x, **named),
        )
        query, key, value, *_ = drawn(4, 4, torch.float32)
        list(attend_blocks_ascend(query, key, value, BLOCKS, scale=SCALE))

    assert calls == [[6, 11], [6, 11]]
