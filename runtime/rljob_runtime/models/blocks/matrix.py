"""A matrix with an optional bias and an optional low-rank adapter."""

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.linear import linear


class Matrix(nn.Module):
    """A parameter `weight` [rows, columns] and an optional `bias` [rows], uninitialised.

    lora_A [rank, columns] and lora_B [rows, rank] are its adapter, which adds lora_scale · B A to the weight
    while it is in use (`models.lora`).
    """

    bias: Tensor | None
    lora_A: "Matrix | None"
    lora_B: "Matrix | None"

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, *, with_bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype)) if with_bias else None
        self.lora_A = self.lora_B = None
        self.lora_scale, self.uses_adapter = 1.0, True

    @property
    def adapter(self) -> "tuple[Matrix, Matrix] | None":
        """Return A and B, or None if there is no adapter or it is not in use."""
        if self.lora_A is None or self.lora_B is None or not self.uses_adapter:
            return None
        return self.lora_A, self.lora_B

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., columns] to [..., rows]."""
        output = linear(x, self.weight, self.bias)
        if self.adapter is None:
            return output
        lora_a, lora_b = self.adapter
        added: Tensor = lora_b(self.lora_scale * lora_a(x))
        return output + added
