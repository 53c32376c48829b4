"""Tensor parallel matrices with sequence parallel tokens (arXiv:2205.05198): between them a rank holds
its share of the tokens, inside them all tokens and its share of the features.

Called by the layers of a parallel model. A column-cut matrix gathers tokens, a row-cut one sums and scatters
them; norms and residuals run on a rank's own tokens, so the gradients of their parameters are sums over
the tensor ranks (`Purpose.WHOLE_GRADIENTS`). Tokens are padded to a multiple of the ranks.
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
    """This rank's features of all tokens by each of several matrices on one input, [S, H] → [U, K] each.

    weights_KH, biases_K: the ranks' rows of the whole matrices. The input is gathered once for all of
    them and kept as [S, H]; backward gathers it again while it computes the input's gradient, and sums
    and scatters that while it computes the weights'.
    """
    outputs: tuple[Tensor, ...] = _ColumnLinear.apply(  # type: ignore[no-untyped-call]
        x_SH, group, len(weights_KH), *weights_KH, *biases_K
    )
    return outputs


def row_linear(
    x_UK: Tensor, weight_HK: Tensor, bias_H: Tensor | None, group: ProcessGroup | None
) -> Tensor:
    """This rank's tokens by a matrix whose input features the ranks share, [U, K] → [S, H].

    weight_HK: this rank's columns of the whole matrix. bias_H: whole, added after the sum; its
    gradient is of this rank's tokens.
    """
    output_SH = scatter_sum_rows(linear(x_UK, weight_HK), group)
    return output_SH if bias_H is None else output_SH + bias_H


def padded_tokens(tokens: int, ranks: int) -> int:
    """So many tokens, and as many more as make the ranks' shares equal."""
    return -(-tokens // ranks) * ranks


def column_linear_bytes(
    tokens: int, features: int, ranks: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Bytes that a rank sends for matrices on one input; tokens: U, features: H. With gradients: the
    input twice and its gradient once."""
    part = tokens // ranks * features * item_bytes
    backward = gather_bytes(part, ranks) + scatter_sum_bytes(part, ranks)
    return gather_bytes(part, ranks) + with_gradients * backward


def row_linear_bytes(
    tokens: int, features: int, ranks: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Bytes that a rank sends for one matrix, or for an embedding; tokens: U, features: H."""
    part = tokens // ranks * features * item_bytes
    return scatter_sum_bytes(part, ranks) + with_gradients * gather_bytes(part, ranks)


class _ColumnLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_SH: Tensor, group: ProcessGroup | None, count: int, *both: Any
    ) -> tuple[Tensor, ...]:
        weights, biases = both[:count], both[count:]
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
