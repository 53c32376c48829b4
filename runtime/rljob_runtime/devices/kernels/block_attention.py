"""Attention over blocks of keys, with the statistics to combine blocks. Called by ring attention.

A block's output ignores all other keys; it comes with the log of the block's sum of exponentials. Gradients
use the output and the log-sum over all blocks. Only the reference materializes scores.
"""

# U local queries, W local keys, Q queries and K keys of one block, R queries of a call
# A query heads, N key/value heads (A/N queries share one), D head width

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.flash_attention import (
    MOST_SEQUENCES,
    RIGHT_DOWN_CAUSAL,
    npu_causal_mask,
)
from rljob_runtime.devices.kernels.tensor_device import on_npu

STATISTICS = (
    8  # npu_fusion_attention repeats each of its two statistics of a query and head this often
)


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that attend to keys: to all, or if causal, where both are the same tokens, to those up to each
    query."""

    queries: slice
    keys: slice
    causal: bool

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the numbers of queries and keys, at least one of each."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start


BlockOutput = tuple[Tensor, Tensor]
"""A block's output [Q, A, D], and the log of the sum of exponentials [Q, A], at least float32."""
Gradients = tuple[Tensor, Tensor, Tensor]
"""Gradients of a block's queries, keys and values."""


def attend_blocks(
    query_UAD: Tensor, key_WND: Tensor, value_WND: Tensor, blocks: Sequence[Block], *, scale: float
) -> Iterator[BlockOutput]:
    """Yield softmax(scale · query keyᵀ) value of each block, in order, without gradients."""
    form: Callable[..., Iterator[BlockOutput]] = attend_blocks_reference
    if on_npu(query_UAD):
        form = attend_blocks_ascend
    elif query_UAD.is_cpu:
        form = _attend_on_cpu
    return form(query_UAD, key_WND, value_WND, blocks, scale=scale)


def attend_blocks_backward(
    gradient_UAD: Tensor,
    query_UAD: Tensor,
    key_WND: Tensor,
    value_WND: Tensor,
    output_UAD: Tensor,
    log_sum_UA: Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
) -> Iterator[Gradients]:
    """Yield the gradients of each block, in order; output and log-sum are those over all blocks of a
    query."""
    form: Callable[..., Iterator[Gradients]] = attend_blocks_backward_reference
    if on_npu(query_UAD):
        form = attend_blocks_backward_ascend
    elif query_UAD.is_cpu:
        form = _backward_on_cpu
    tensors = (gradient_UAD, query_UAD, key_WND, value_WND, output_UAD, log_sum_UA)
    return form(*tensors, blocks, scale=scale)


def attend_blocks_reference(
    query_UAD: Tensor, key_WND: Tensor, value_WND: Tensor, blocks: Sequence[Block], *, scale: float
) -> Iterator[BlockOutput]:
    """Compute `attend_blocks` in plain torch, with matrices of scores."""
    for block in blocks:
        scores_AQK, value_KAD = _scores(query_UAD, key_WND, value_WND, block, scale)[1:3]
        log_sum_AQ = scores_AQK.logsumexp(-1)
        output = torch.einsum("aqk,kad->qad", (scores_AQK - log_sum_AQ[..., None]).exp(), value_KAD)
        yield output.to(query_UAD.dtype), log_sum_AQ.T


def attend_blocks_backward_reference(
    gradient_UAD: Tensor,
    query_UAD: Tensor,
    key_WND: Tensor,
    value_WND: Tensor,
    output_UAD: Tensor,
    log_sum_UA: Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
) -> Iterator[Gradients]:
    """Compute `attend_blocks_backward` in plain torch (FlashAttention, arXiv:2205.14135, algorithm 4)."""
    for block in blocks:
        key_KAD, scores_AQK, value_KAD = _scores(query_UAD, key_WND, value_WND, block, scale)
        gradient, query, output = (
            x[block.queries].float() for x in (gradient_UAD, query_UAD, output_UAD)
        )
        weights_AQK = (scores_AQK - log_sum_UA[block.queries].T[..., None]).exp()
        weights_gradient_AQK = torch.einsum("qad,kad->aqk", gradient, value_KAD)
        inner_AQ1 = (gradient * output).sum(-1).T[..., None]
        scores_gradient_AQK = weights_AQK * (weights_gradient_AQK - inner_AQ1) * scale
        query_gradient_QAD = torch.einsum("aqk,kad->qad", scores_gradient_AQK, key_KAD)
        key_gradient_KAD = torch.einsum("aqk,qad->kad", scores_gradient_AQK, query)
        value_gradient_KAD = torch.einsum("aqk,qad->kad", weights_AQK, gradient)
        heads = (key_WND.shape[1], -1)
        summed = (
            torch.unflatten(x, 1, heads).sum(2) for x in (key_gradient_KAD, value_gradient_KAD)
        )
        key_gradient_KND, value_gradient_KND = (x.to(key_WND.dtype) for x in summed)
        yield query_gradient_QAD.to(query_UAD.dtype), key_gradient_KND, value_gradient_KND


def attend_blocks_ascend(
    query_UAD: Tensor, key_WND: Tensor, value_WND: Tensor, blocks: Sequence[Block], *, scale: float
) -> Iterator[BlockOutput]:
    """Compute `attend_blocks` on an NPU: all causal blocks in one call and all others in another."""
    for call in _fused_calls(blocks):
        output_RAD, largest, total, *_ = torch.ops.npu.npu_fusion_attention(
            call.gather_queries(query_UAD),
            *(call.gather_keys(x) for x in (key_WND, value_WND)),
            head_num=query_UAD.shape[1],
            scale=scale,
            **call.arguments(query_UAD.device),
        )
        log_sum_RA = largest[..., 0] + total[..., 0].log()
        sizes = call.sizes(0)
        yield from zip(output_RAD.split(sizes), log_sum_RA.split(sizes), strict=True)


def attend_blocks_backward_ascend(
    gradient_UAD: Tensor,
    query_UAD: Tensor,
    key_WND: Tensor,
    value_WND: Tensor,
    output_UAD: Tensor,
    log_sum_UA: Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
) -> Iterator[Gradients]:
    """Compute `attend_blocks_backward` on an NPU, in as many calls.

    The operator computes exp(score - largest) / sum from its arguments, so the log-sum over all blocks
    replaces the largest score of a query, with 1 as the sum.
    """
    for call in _fused_calls(blocks):
        log_sum_RA = call.gather_queries(log_sum_UA.float())
        largest_RA8 = log_sum_RA[..., None].expand(-1, -1, STATISTICS).contiguous()
        gradients = torch.ops.npu.npu_fusion_attention_grad(
            call.gather_queries(query_UAD),
            *(call.gather_keys(x) for x in (key_WND, value_WND)),
            call.gather_queries(gradient_UAD),
            head_num=query_UAD.shape[1],
            softmax_max=largest_RA8,
            softmax_sum=torch.ones_like(largest_RA8),
            attention_in=call.gather_queries(output_UAD),
            scale_value=scale,
            **call.arguments(query_UAD.device),
        )[:3]
        sizes = (call.sizes(0), call.sizes(1), call.sizes(1))
        splits = (x.split(size) for x, size in zip(gradients, sizes, strict=True))
        yield from zip(*splits, strict=True)


@dataclass(frozen=True, slots=True)
class _FusedCall:
    """Blocks of one operator call, all of them causal or none."""

    blocks: Sequence[Block]

    def gather_queries(self, x_UAX: Tensor) -> Tensor:
        """Concatenate the blocks' queries of a [U, A, ...] tensor to [R, A, ...]."""
        return torch.cat([x_UAX[block.queries] for block in self.blocks])

    def gather_keys(self, x_WNX: Tensor) -> Tensor:
        """Concatenate the blocks' keys, or values, of a [W, N, ...] tensor, in the order of blocks."""
        return torch.cat([x_WNX[block.keys] for block in self.blocks])

    def sizes(self, side: int) -> list[int]:
        """Return the number of each block's queries (side 0) or keys (side 1)."""
        return [block.sizes[side] for block in self.blocks]

    def arguments(self, device: torch.device) -> dict[str, Any]:
        """Return arguments of the operator and of its gradient. Statistics are [R, A, 8], in the order of
        queries."""
        causal = self.blocks[0].causal
        return {
            "input_layout": "TND",
            "softmax_layout": "TND",
            "atten_mask": npu_causal_mask(device) if causal else None,
            "sparse_mode": RIGHT_DOWN_CAUSAL if causal else 0,
            "actual_seq_qlen": list(accumulate(self.sizes(0))),
            "actual_seq_kvlen": list(accumulate(self.sizes(1))),
        }


def _fused_calls(blocks: Sequence[Block]) -> Iterator[_FusedCall]:
    for _, run in groupby(blocks, key=lambda block: block.causal):
        same_kind = list(run)
        for first in range(0, len(same_kind), MOST_SEQUENCES):
            yield _FusedCall(same_kind[first : first + MOST_SEQUENCES])


def _attend_on_cpu(
    query_UAD: Tensor, key_WND: Tensor, value_WND: Tensor, blocks: Sequence[Block], *, scale: float
) -> Iterator[BlockOutput]:
    """Compute `attend_blocks` by torch's FlashAttention for CPU; key heads are not repeated in memory."""
    for block in blocks:
        tensors = (query_UAD[block.queries], key_WND[block.keys], value_WND[block.keys])
        output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(_batched(x) for x in tensors), 0.0, block.causal, scale=scale
        )
        yield output[0].transpose(0, 1), log_sum[0].T


def _backward_on_cpu(
    gradient_UAD: Tensor,
    query_UAD: Tensor,
    key_WND: Tensor,
    value_WND: Tensor,
    output_UAD: Tensor,
    log_sum_UA: Tensor,
    blocks: Sequence[Block],
    *,
    scale: float,
) -> Iterator[Gradients]:
    for block in blocks:
        queries, keys = block.queries, block.keys
        tensors = (
            gradient_UAD[queries], query_UAD[queries], key_WND[keys], value_WND[keys],
            output_UAD[queries],
        )  # fmt: skip
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_batched(x) for x in tensors),
            log_sum_UA[queries].T[None],
            0.0,
            block.causal,
            scale=scale,
        )
        query, key, value = (gradient[0].transpose(0, 1) for gradient in gradients)
        yield query, key, value


def _scores(
    query_UAD: Tensor, key_WND: Tensor, value_WND: Tensor, block: Block, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return keys, scores and values of all query heads, [K, A, D], [A, Q, K], [K, A, D], in float32."""
    repeats = query_UAD.shape[1] // key_WND.shape[1]
    key_KAD, value_KAD = (
        x[block.keys].float().repeat_interleave(repeats, 1) for x in (key_WND, value_WND)
    )
    scores_AQK = torch.einsum("qad,kad->aqk", query_UAD[block.queries].float(), key_KAD) * scale
    if block.causal:
        future_QK = torch.ones_like(scores_AQK[0], dtype=torch.bool).triu(1)
        scores_AQK = scores_AQK.masked_fill(future_QK, float("-inf"))
    return key_KAD, scores_AQK, value_KAD


def _batched(x: Tensor) -> Tensor:
    return x.transpose(0, 1)[None]
