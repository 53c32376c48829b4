"""The gated feed-forward (SwiGLU)."""

# H hidden

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.models.blocks.matrix import Matrix


class GatedMlp(nn.Module):
    """down(silu(gate x) * up x). inner: width in between."""

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype, *, with_bias: bool) -> None:
        super().__init__()
        self.gate_proj = Matrix(inner, hidden, dtype, with_bias=with_bias)
        self.up_proj = Matrix(inner, hidden, dtype, with_bias=with_bias)
        self.down_proj = Matrix(hidden, inner, dtype, with_bias=with_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output
