"""Matrices and embeddings whose backward pass adds into the weight's `grad` itself. Called by blocks.

A weight in bfloat16 whose `grad_dtype` is float32 (`precision` sets it) gets its gradient by
MatmulAdd: the product is added in float32, never rounded to the weight's type; where there is no `grad` yet,
autograd gets the float32 product. So does a large weight that has a `grad`: autograd would write the product
to a tensor of its own and pass over both again. A small weight's gradient over many rows is a product of
`matmul_add`. Other weights are computed as by torch.
"""

# N output features, K input features, M rows, E groups of rows, U tokens, V ids, H hidden

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.grouped_matmul import grouped_matmul
from rljob_runtime.devices.kernels.matmul_add import matmul_add_, matmul_over_rows, num_pieces

LARGE = 1 << 17
"""Values of a weight from which on the passes saved outweigh a backward pass in Python."""


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias, [..., K] -> [..., N]."""
    if not (sums_gradient(weight_NK) or _sums_pieces(x, weight_NK)):
        return F.linear(x, weight_NK, bias_N)
    output: Tensor = _Linear.apply(x, weight_NK, bias_N)  # type: ignore[no-untyped-call]
    return output


def grouped_linear(x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> Tensor:
    """Rows of group e by weight e, [M, K] -> [M, N]; `ends_E` as in `grouped_matmul`."""
    fused = not weight_ENK.is_cpu and _gradient_dtype(weight_ENK) == weight_ENK.dtype
    if fused or not sums_gradient(weight_ENK):
        return grouped_matmul(x_MK, weight_ENK.transpose(1, 2), ends_E)
    output_MN: Tensor = _GroupedLinear.apply(x_MK, weight_ENK, ends_E)  # type: ignore[no-untyped-call]
    return output_MN


def embedding(tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
    """Rows of the weight, [U] -> [U, H]."""
    if not sums_gradient(weight_VH):
        return F.embedding(tokens_U, weight_VH)
    output_UH: Tensor = _Embedding.apply(tokens_U, weight_VH)  # type: ignore[no-untyped-call]
    return output_UH


def sums_gradient(weight: Tensor) -> bool:
    """Whether a pass under way shall add up the weight's gradient itself."""
    trains = torch.is_grad_enabled() and weight.requires_grad
    return trains and (_gradient_dtype(weight) != weight.dtype or _held_sum(weight) is not None)


def gradient_sum(weight: Tensor) -> Tensor:
    """What a backward pass adds a weight's gradient to: its `grad`, or zeros in float32 or wider, which
    autograd adds up, or makes of the type that the weight takes."""
    held = _held_sum(weight)
    wide = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros_like(weight, dtype=wide) if held is None else held


def returned(weight: Tensor, gradient: Tensor) -> Tensor | None:
    """What the backward pass gives autograd of a `gradient_sum`: nothing of what is in `grad` already."""
    return None if gradient is _held_sum(weight) else gradient


def weight_gradient(weight_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor | None:
    """A matrix's gradient as a backward pass returns it, output_gradientᵀ x; [..., N] and [..., K]."""
    if _gradient_dtype(weight_NK) == weight_NK.dtype and _held_sum(weight_NK) is None:
        return matmul_over_rows(output_gradient.flatten(0, -2), x.flatten(0, -2))
    into_NK = gradient_sum(weight_NK)
    return returned(weight_NK, matmul_add_(into_NK, output_gradient, x))


def bias_gradient(output_gradient: Tensor) -> Tensor:
    """A bias' gradient, [..., N] -> [N], in float32 or wider."""
    wide = torch.promote_types(output_gradient.dtype, torch.float32)
    return output_gradient.flatten(0, -2).sum(0, dtype=wide)


def _sums_pieces(x: Tensor, weight_NK: Tensor) -> bool:
    """Whether a pass under way shall take the weight's gradient in pieces of the rows."""
    trains = torch.is_grad_enabled() and weight_NK.requires_grad
    return trains and weight_NK.dtype == x.dtype and num_pieces(x, weight_NK) > 1


def _held_sum(weight: Tensor) -> Tensor | None:
    """The weight's `grad` where a backward pass may add to it: hooks hear of what autograd adds alone."""
    gradient = weight.grad if weight.is_leaf else None
    if gradient is None or gradient.dtype != weight.dtype:
        return gradient
    wide = weight.dtype.itemsize >= torch.float32.itemsize
    alone = weight.numel() >= LARGE and not weight._post_accumulate_grad_hooks
    return gradient if wide and alone else None


def _gradient_dtype(weight: Tensor) -> torch.dtype:
    return (weight.grad_dtype if weight.is_leaf else None) or weight.dtype


# A weight is kept as an attribute: a saved tensor that is computed again is not the parameter.


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.biased = weight_NK, bias_N is not None
        return F.linear(x, weight_NK, bias_N)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (x,) = gradients, ctx.saved_tensors
        return (
            gradient @ ctx.weight if ctx.needs_input_grad[0] else None,
            weight_gradient(ctx.weight, gradient, x),
            bias_gradient(gradient) if ctx.biased else None,
        )


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, ends_E)
        ctx.weight = weight_ENK
        return grouped_matmul(x_MK, weight_ENK.transpose(1, 2), ends_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (gradient_MN,), (x_MK, ends_E) = gradients, ctx.saved_tensors
        into_ENK, start = gradient_sum(ctx.weight), 0
        for into_NK, end in zip(into_ENK, ends_E.tolist(), strict=True):
            if end > start:
                matmul_add_(into_NK, gradient_MN[start:end], x_MK[start:end])
            start = end
        x_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = grouped_matmul(gradient_MN, ctx.weight.detach(), ends_E)
        return x_gradient, returned(ctx.weight, into_ENK), None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        ctx.save_for_backward(tokens_U)
        ctx.weight = weight_VH
        return F.embedding(tokens_U, weight_VH)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None]:
        (gradient_UH,), (tokens_U,) = gradients, ctx.saved_tensors
        into_VH = gradient_sum(ctx.weight)
        into_VH.index_add_(0, tokens_U, gradient_UH.to(into_VH.dtype))
        return None, returned(ctx.weight, into_VH)
