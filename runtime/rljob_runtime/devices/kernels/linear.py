"""Matrices and embeddings whose backward pass accumulates into the weight's `grad`. Called by blocks.

A bfloat16 weight whose `grad_dtype` is float32 (set by `precision`) gets its gradient by MatmulAdd. The
product is added in float32, never rounded to the weight's type; without a `grad`, autograd receives the
float32 product. A large weight that has a `grad` does the same: autograd would write the product to a new
tensor and read both again. A small weight's gradient over many rows is a product of `matmul_add`. Other
weights use torch's functions.
"""

# N output features, K input features, M rows, E groups of rows, U tokens, V ids, H hidden

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.grouped_matmul import grouped_matmul
from rljob_runtime.devices.kernels.matmul_add import matmul_add_, matmul_over_rows, num_row_chunks

LARGE = 1 << 17
"""Size of a weight from which the saved memory passes outweigh a backward pass in Python."""


def linear(x: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """Return x weightᵀ + bias, [..., K] -> [..., N]."""
    if not (sums_gradient(weight_NK) or _splits_rows(x, weight_NK)):
        return F.linear(x, weight_NK, bias_N)
    output: Tensor = _Linear.apply(x, weight_NK, bias_N)  # type: ignore[no-untyped-call]
    return output


def grouped_linear(x_MK: Tensor, weight_ENK: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply the rows of group e with weight e, [M, K] -> [M, N]; `ends_E` as in `grouped_matmul`."""
    fused = not weight_ENK.is_cpu and _gradient_dtype(weight_ENK) == weight_ENK.dtype
    if fused or not sums_gradient(weight_ENK):
        return grouped_matmul(x_MK, weight_ENK.transpose(1, 2), ends_E)
    output_MN: Tensor = _GroupedLinear.apply(x_MK, weight_ENK, ends_E)  # type: ignore[no-untyped-call]
    return output_MN


def embedding(tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
    """Look up rows of the weight, [U] -> [U, H]."""
    if not sums_gradient(weight_VH):
        return F.embedding(tokens_U, weight_VH)
    output_UH: Tensor = _Embedding.apply(tokens_U, weight_VH)  # type: ignore[no-untyped-call]
    return output_UH


def sums_gradient(weight: Tensor) -> bool:
    """Return whether the current pass must accumulate the weight's gradient itself."""
    trains = torch.is_grad_enabled() and weight.requires_grad
    return trains and (
        _gradient_dtype(weight) != weight.dtype or _accumulated_gradient(weight) is not None
    )


def gradient_sum(weight: Tensor) -> Tensor:
    """Return the tensor to which a backward pass adds a weight's gradient: its `grad`, or zeros in float32 or
    wider, which autograd accumulates, or converts to the type of the weight's gradient."""
    accumulated = _accumulated_gradient(weight)
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.zeros_like(weight, dtype=dtype) if accumulated is None else accumulated


def autograd_gradient(weight: Tensor, gradient: Tensor) -> Tensor | None:
    """Return the gradient that autograd must receive of a `gradient_sum`; None where it is in `grad`
    already."""
    return None if gradient is _accumulated_gradient(weight) else gradient


def weight_gradient(weight_NK: Tensor, output_gradient: Tensor, x: Tensor) -> Tensor | None:
    """Return a matrix's gradient for autograd, output_gradientᵀ x, from [..., N] and [..., K]."""
    if _gradient_dtype(weight_NK) == weight_NK.dtype and _accumulated_gradient(weight_NK) is None:
        return matmul_over_rows(output_gradient.flatten(0, -2), x.flatten(0, -2))
    into_NK = gradient_sum(weight_NK)
    return autograd_gradient(weight_NK, matmul_add_(into_NK, output_gradient, x))


def bias_gradient(output_gradient: Tensor) -> Tensor:
    """Return a bias' gradient, [..., N] -> [N], in float32 or wider."""
    dtype = torch.promote_types(output_gradient.dtype, torch.float32)
    return output_gradient.flatten(0, -2).sum(0, dtype=dtype)


def _splits_rows(x: Tensor, weight_NK: Tensor) -> bool:
    """Return whether the current pass must compute the weight's gradient in chunks of the rows."""
    trains = torch.is_grad_enabled() and weight_NK.requires_grad
    return trains and weight_NK.dtype == x.dtype and num_row_chunks(x, weight_NK) > 1


def _accumulated_gradient(weight: Tensor) -> Tensor | None:
    """Return the weight's `grad` where a backward pass may add to it: hooks run only for gradients of
    autograd."""
    gradient = weight.grad if weight.is_leaf else None
    if gradient is None or gradient.dtype != weight.dtype:
        return gradient
    is_wide = weight.dtype.itemsize >= torch.float32.itemsize
    is_plain = weight.numel() >= LARGE and not weight._post_accumulate_grad_hooks
    return gradient if is_wide and is_plain else None


def _gradient_dtype(weight: Tensor) -> torch.dtype:
    return (weight.grad_dtype if weight.is_leaf else None) or weight.dtype


# A weight is stored as an attribute: a saved tensor that is recomputed is not the parameter.


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
        return x_gradient, autograd_gradient(ctx.weight, into_ENK), None


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
        return None, autograd_gradient(ctx.weight, into_VH)
