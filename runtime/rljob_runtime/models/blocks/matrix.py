"""A matrix with an optional bias."""

import torch
from torch import Tensor, nn

from rljob_runtime.kernels.linear import linear


class Matrix(nn.Module):
    """A parameter `weight` [rows, columns] and an optional `bias` [rows], uninitialised."""

    bias: Tensor | None

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, *, with_bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., columns] -> [..., rows]."""
        return linear(x, self.weight, self.bias)
