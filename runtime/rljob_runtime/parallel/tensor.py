"""Tensor parallel matrices with sequence parallel tokens (arXiv:2205.05198). Between matrices a rank holds
its share of the tokens; inside them it holds all tokens and its share of the features.

Called by the layers of a parallel model. A column-parallel matrix gathers tokens, a row-parallel one sums and
scatters them. Norms and residuals run on a rank's local tokens, so the gradients of their parameters are sums
over the tensor ranks (`Purpose.WHOLE_GRADIENTS`). Tokens are padded to a multiple of the ranks.
"""

# S tokens of one rank, U of all ranks, H features of the model, K features of one rank inside

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.kernels.linear import bias_gradient, linear, weight_gradient
from rljob_runtime.devices.wire import start_gather, start_scatter_sum
from rljob_runtime.parallel.sequence import scatter_sum_rows
from rljob_runtime.parallel.volume import gather_bytes, scatter_sum_bytes


def column_linear(
    x_SH: Tensor,
    weights_KH: Sequence[Tensor],
    biases_K: Sequence[Tensor | None],
    group: ProcessGroup | None,
) -> tuple[Tensor, ...]:
    """Multiply all tokens by this rank's rows of several matrices with one input, [S, H] → [U, K] each.

    weights_KH, biases_K: this rank's rows of the full matrices. The input is gathered once for all of them
    and saved as [S, H]. Backward gathers it again while it computes the input's gradient, and reduce-scatters
    that gradient while it computes the weights'.
    """
    outputs: tuple[Tensor, ...] = _ColumnLinear.apply(  # type: ignore[no-untyped-call]
        x_SH, group, len(weights_KH), *weights_KH, *biases_K
    )
    return outputs


def row_linear(
    x_UK: Tensor, weight_HK: Tensor, bias_H: Tensor | None, group: ProcessGroup | None
) -> Tensor:
    """Multiply tokens by a matrix whose input features the ranks share, [U, K] → [S, H], this rank's tokens.

    weight_HK: this rank's columns of the full matrix. bias_H: full, added after the sum; its gradient covers
    this rank's tokens.
    """
    output_SH = scatter_sum_rows(linear(x_UK, weight_HK), group)
    return output_SH if bias_H is None else output_SH + bias_H


def padded_tokens(tokens: int, ranks: int) -> int:
    """Return this number of tokens, rounded up so that the ranks' shares are equal."""
    return -(-tokens // ranks) * ranks


def column_linear_bytes(
    tokens: int, features: int, ranks: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Return the bytes that a rank sends for matrices on one input; tokens: U, features: H. With gradients,
    it sends the input twice and its gradient once."""
    shard = tokens // ranks * features * item_bytes
    backward = gather_bytes(shard, ranks) + scatter_sum_bytes(shard, ranks)
    return gather_bytes(shard, ranks) + with_gradients * backward


def row_linear_bytes(
    tokens: int, features: int, ranks: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Return the bytes that a rank sends for one matrix, or for an embedding; tokens: U, features: H."""
    shard = tokens // ranks * features * item_bytes
    return scatter_sum_bytes(shard, ranks) + with_gradients * gather_bytes(shard, ranks)


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_SH: Tensor, group: ProcessGroup | None, count: int, *weights_and_biases: Any
    ) -> tuple[Tensor, ...]:
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        ctx.group, ctx.biased = group, [bias is not None for bias in biases]
        ctx.save_for_backward(x_SH)
        ctx.weights = weights  # not saved: `weight_gradient` needs the parameters
        x_UH = start_gather(x_SH, group).wait()
        return tuple(F.linear(x_UH, *each) for each in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients_UK: Tensor) -> tuple[Tensor | None, ...]:
        (x_SH,), weights_KH = ctx.saved_tensors, ctx.weights
        trains = ctx.needs_input_grad[3:][: len(weights_KH)]
        gathered = start_gather(x_SH, ctx.group) if any(trains) else None
        gradient_UH = gradients_UK[0] @ weights_KH[0]
        for gradient_UK, weight_KH in zip(gradients_UK[1:], weights_KH[1:], strict=True):
            gradient_UH.addmm_(gradient_UK, weight_KH)
        scattered = start_scatter_sum(gradient_UH, ctx.group)
        weight_gradients: list[Tensor | None] = [None] * len(weights_KH)
        if gathered is not None:
            x_UH = gathered.wait()
            weight_gradients = [
                weight_gradient(weight_KH, gradient_UK, x_UH) if trained else None
                for weight_KH, gradient_UK, trained in zip(
                    weights_KH, gradients_UK, trains, strict=True
                )
            ]
        bias_gradients = [
            bias_gradient(gradient_UK) if biased else None
            for gradient_UK, biased in zip(gradients_UK, ctx.biased, strict=True)
        ]
        return scattered.wait(), None, None, *weight_gradients, *bias_gradients
