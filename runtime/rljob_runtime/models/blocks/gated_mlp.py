"""The gated feed-forward block (SwiGLU)."""

# H hidden

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.models.blocks.linears import Linears, WholeLinears
from rljob_runtime.models.blocks.matrix import Matrix


class GatedMlp(nn.Module):
    """Computes down(silu(gate x) * up x). inner: width between the two matrices."""

    linears: Linears

    def __init__(self, hidden: int, inner: int, dtype: torch.dtype, *, with_bias: bool) -> None:
        super().__init__()
        self.linears = WholeLinears()
        self.gate_proj = Matrix(inner, hidden, dtype, with_bias=with_bias)
        self.up_proj = Matrix(inner, hidden, dtype, with_bias=with_bias)
        self.down_proj = Matrix(hidden, inner, dtype, with_bias=with_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., H] to [..., H]."""
        gate, up = self.linears.columns(x, self.gate_proj, self.up_proj)
        return self.linears.rows(F.silu(gate) * up, self.down_proj)
