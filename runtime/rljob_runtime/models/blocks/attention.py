"""Attention with separate keys and values per head (multi-head and grouped-query attention)."""

# U packed tokens, H hidden, A query heads, N key/value heads, D head width

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.linears import Linears, WholeLinears
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.norm import Norm
from rljob_runtime.models.blocks.packed_attention import Attend, attend
from rljob_runtime.models.packing import Packing


class Attention(nn.Module):
    """Causal attention of prompts, and of responses over their prompt and themselves."""

    linears: Linears
    attend: Attend

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        a, hidden, bias = architecture, architecture.hidden_size, architecture.qkv_bias
        self.head_dim, self.scale = a.head_dim, a.score_scale
        self.linears, self.attend = WholeLinears(), attend
        self.q_proj = Matrix(a.num_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.k_proj = Matrix(a.num_kv_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.v_proj = Matrix(a.num_kv_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.o_proj = Matrix(hidden, a.num_heads * a.head_dim, dtype, with_bias=a.output_bias)
        self.q_norm = Norm(a.head_dim, a.norm_epsilon, dtype) if a.qk_norm else nn.Identity()
        self.k_norm = Norm(a.head_dim, a.norm_epsilon, dtype) if a.qk_norm else nn.Identity()

    def forward(self, x_UH: Tensor, packing: Packing, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map [U, H] to [U, H]. rotation: cos and sin, [U, 1, D/2] each."""
        projected = self.linears.columns(x_UH, self.q_proj, self.k_proj, self.v_proj)
        query_UAD, key_UND, value_UND = (self._heads(x_UX) for x_UX in projected)
        query_UAD = rotate(self.q_norm(query_UAD), *rotation)
        key_UND = rotate(self.k_norm(key_UND), *rotation)
        mixed_UX = self.attend(query_UAD, key_UND, value_UND, packing, scale=self.scale)
        return self.linears.rows(mixed_UX, self.o_proj)

    def _heads(self, x_UX: Tensor) -> Tensor:
        return x_UX.view(len(x_UX), -1, self.head_dim)
