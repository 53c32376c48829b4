"""GMM: one matrix product per group of rows, for experts. Called by mixture-of-experts layers."""

# M rows, E groups, K input features, N output features

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.tensor_device import on_npu


def grouped_matmul(x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply the rows of group e with weight e, [M, K] x [E, K, N] -> [M, N].

    ends_E: int64 on x's device, where each group ends; the last is M. Groups may be empty.
    """
    if on_npu(x_MK):
        return grouped_matmul_ascend(x_MK, weight_EKN, ends_E)
    output_MN: Tensor = _GroupedMatmul.apply(x_MK, weight_EKN, ends_E)  # type: ignore[no-untyped-call]
    return output_MN


def grouped_matmul_reference(x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """Compute `grouped_matmul` in plain torch."""
    weights = weight_EKN.unbind()
    return torch.cat([x_MK[rows] @ weights[e] for e, rows in _groups(ends_E)])


def grouped_matmul_ascend(x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    """Compute `grouped_matmul` on an NPU."""
    output_MN: Tensor = _AscendGroupedMatmul.apply(x_MK, weight_EKN, ends_E)  # type: ignore[no-untyped-call]
    return output_MN


def _groups(ends_E: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield each group's index and rows."""
    start = 0
    for e, end in enumerate(ends_E.tolist()):
        yield e, slice(start, end)
        start = end


class _GroupedMatmul(torch.autograd.Function):
    """Writes each product into the result directly. With 64 groups of 32 rows 3 times as fast as the
    reference, and 1.4 times as fast as `torch.nn.functional.grouped_mm`, which requires widths of 16 bytes.
    """

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_MK, weight_EKN, ends_E)
        return _by_rows(x_MK, weight_EKN, ends_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_MK, weight_EKN, ends_E = ctx.saved_tensors
        x_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = _by_rows(gradients[0], weight_EKN.transpose(1, 2), ends_E)
        if ctx.needs_input_grad[1]:
            weight_gradient = torch.empty_like(weight_EKN)
            for e, rows in _groups(ends_E):
                torch.mm(x_MK[rows].t(), gradients[0][rows], out=weight_gradient[e])
        return x_gradient, weight_gradient, None


def _by_rows(x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    output_MN = x_MK.new_empty(len(x_MK), weight_EKN.shape[2])
    for e, rows in _groups(ends_E):
        torch.mm(x_MK[rows], weight_EKN[e], out=output_MN[rows])
    return output_MN


class _AscendGroupedMatmul(torch.autograd.Function):
    """Gradients of the operator, which has no autograd node; both are grouped products."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
        x_MK = x_MK.contiguous()  # the gradient needs a transposed view of it
        ctx.save_for_backward(x_MK, weight_EKN, ends_E)
        return _npu_by_rows(x_MK, weight_EKN, ends_E)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_MK, weight_EKN, ends_E = ctx.saved_tensors
        gradient_MN = gradients[0].contiguous()
        x_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = _npu_by_rows(gradient_MN, weight_EKN.transpose(1, 2), ends_E)
        if ctx.needs_input_grad[1]:
            weight_gradient = _npu_by_columns(x_MK.t(), gradient_MN, ends_E)
        return x_gradient, weight_gradient, None


# Codes of npu_grouped_matmul: group_type 0 splits rows, 2 the reduced dim; split_item 2 and 3 return one
# tensor; group_list_type 0 means ends of groups, also for a single group.


def _npu_by_rows(x_MK: Tensor, weight_EKN: Tensor, ends_E: Tensor) -> Tensor:
    if not len(x_MK):
        return x_MK.new_empty(0, weight_EKN.shape[2])
    outputs: list[Tensor] = torch.ops.npu.npu_grouped_matmul(
        [x_MK], [weight_EKN], group_list=ends_E, split_item=2, group_type=0, group_list_type=0
    )
    return outputs[0]


def _npu_by_columns(x_KM: Tensor, y_MN: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply the columns of group e with the same rows of y, -> [E, K, N]."""
    if not len(y_MN):
        return y_MN.new_zeros(len(ends_E), len(x_KM), y_MN.shape[1])
    outputs: list[Tensor] = torch.ops.npu.npu_grouped_matmul(
        [x_KM], [y_MN], group_list=ends_E, split_item=3, group_type=2, group_list_type=0
    )
    return outputs[0]
