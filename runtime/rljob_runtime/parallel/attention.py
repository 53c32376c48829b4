"""Attention over one block of keys, with what it takes to add blocks up: the kernel of ring attention.

On CPU torch's FlashAttention, which keeps no scores. Called by `ring` alone.
"""

# Q queries, K keys, A query heads, N key/value heads (A/N queries share one), D head width

from typing import Protocol

import torch
from torch import Tensor


class BlockKernel(Protocol):
    """Attention of one sample's queries over some of its keys, forward and backward."""

    def forward(
        self, query_QAD: Tensor, key_KND: Tensor, value_KND: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Output [Q, A, D], as if there were no other keys, and the log of the sum of exponentials
        [Q, A], at least float32. causal: queries and keys are the same tokens."""
        ...

    def backward(
        self,
        gradient_QAD: Tensor,
        query_QAD: Tensor,
        key_KND: Tensor,
        value_KND: Tensor,
        output_QAD: Tensor,
        log_sum_QA: Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of queries, keys and values through this block; output and log-sum are those over
        all blocks."""
        ...


class CpuFlash:
    """torch's FlashAttention for CPU; key heads are not repeated in memory."""

    def forward(
        self, query_QAD: Tensor, key_KND: Tensor, value_KND: Tensor, *, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        """See BlockKernel."""
        output, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(_batched(x) for x in (query_QAD, key_KND, value_KND)), 0.0, causal, scale=scale
        )
        return output[0].transpose(0, 1), log_sum[0].T

    def backward(
        self,
        gradient_QAD: Tensor,
        query_QAD: Tensor,
        key_KND: Tensor,
        value_KND: Tensor,
        output_QAD: Tensor,
        log_sum_QA: Tensor,
        *,
        causal: bool,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See BlockKernel."""
        tensors = (gradient_QAD, query_QAD, key_KND, value_KND, output_QAD)
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(_batched(x) for x in tensors), log_sum_QA.T[None], 0.0, causal, scale=scale
        )
        query, key, value = (gradient[0].transpose(0, 1) for gradient in gradients)
        return query, key, value


def _batched(x: Tensor) -> Tensor:
    return x.transpose(0, 1)[None]
