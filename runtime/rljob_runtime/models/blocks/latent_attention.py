"""Multi-head latent attention: keys and values of all heads come from one narrow vector per token.

DeepSeek-V2, arXiv:2405.04434, §2.1. Training computes every head's keys and values from the latent; the
rollout's version (`fused.fused_latent`) attends to the latent directly.
"""

# U packed tokens, H hidden, A heads, C rank of the latent, R rotated width, E value width
# S width without position, D = S + R

import torch
from torch import Tensor, nn

from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture, LatentArchitecture
from rljob_runtime.models.blocks.linears import Linears, WholeLinears
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.norm import Norm
from rljob_runtime.models.blocks.packed_attention import Attend, attend
from rljob_runtime.models.blocks.rotary import halves
from rljob_runtime.models.packing import Packing

LATENT_EPSILON = 1e-6  # for norms of compressed vectors; config.json's is for the others


class LatentAttention(nn.Module):
    """Causal attention of prompts, and of responses over their prompt and themselves."""

    linears: Linears
    attend: Attend

    def __init__(
        self, architecture: Architecture, latent: LatentArchitecture, dtype: torch.dtype
    ) -> None:
        super().__init__()
        hidden, heads = architecture.hidden_size, architecture.num_heads
        query_rows, bias = heads * architecture.head_dim, architecture.qkv_bias
        self.latent, self.scale = latent, architecture.score_scale
        self.linears, self.attend = WholeLinears(), attend
        if latent.query_rank is None:
            self.q_proj = Matrix(query_rows, hidden, dtype)
        else:
            self.q_a_proj = Matrix(latent.query_rank, hidden, dtype, with_bias=bias)
            self.q_a_layernorm = Norm(latent.query_rank, LATENT_EPSILON, dtype)
            self.q_b_proj = Matrix(query_rows, latent.query_rank, dtype)
        compressed_rows = latent.kv_rank + latent.rope_dim
        self.kv_a_proj_with_mqa = Matrix(compressed_rows, hidden, dtype, with_bias=bias)
        self.kv_a_layernorm = Norm(latent.kv_rank, LATENT_EPSILON, dtype)
        expanded_rows = heads * (latent.nope_dim + latent.value_dim)
        self.kv_b_proj = Matrix(expanded_rows, latent.kv_rank, dtype)
        self.o_proj = Matrix(
            hidden, heads * latent.value_dim, dtype, with_bias=architecture.output_bias
        )

    def forward(self, x_UH: Tensor, packing: Packing, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Map [U, H] to [U, H]. rotation: cos and sin, [U, 1, R/2] each."""
        sizes = self.latent
        query_UX = self._query(x_UH)
        query_UAD = query_UX.view(len(query_UX), -1, sizes.nope_dim + sizes.rope_dim)
        query_UAS, turned_UAR = torch.split(query_UAD, [sizes.nope_dim, sizes.rope_dim], dim=-1)
        compressed_UX = self.kv_a_proj_with_mqa(x_UH)
        latent_UC, key_UR = torch.split(compressed_UX, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        (expanded_UX,) = self.linears.columns(self.kv_a_layernorm(latent_UC), self.kv_b_proj)
        expanded = expanded_UX.view(len(expanded_UX), -1, sizes.nope_dim + sizes.value_dim)
        key_UAS, value_UAE = torch.split(expanded, [sizes.nope_dim, sizes.value_dim], dim=-1)
        turned_key_U1R = self._turn(self.linears.all_tokens(key_UR)[:, None], rotation)
        turned_key_UAR = turned_key_U1R.expand(-1, expanded.shape[1], -1)
        query_UAD = torch.cat([query_UAS, self._turn(turned_UAR, rotation)], dim=-1)
        key_UAD = torch.cat([key_UAS, turned_key_UAR], dim=-1)
        mixed_UX = self.attend(query_UAD, key_UAD, value_UAE, packing, scale=self.scale)
        return self.linears.rows(mixed_UX, self.o_proj)

    def _query(self, x_UH: Tensor) -> Tensor:
        if self.latent.query_rank is None:
            (query_UX,) = self.linears.columns(x_UH, self.q_proj)
        else:
            narrow_UX = self.q_a_layernorm(self.q_a_proj(x_UH))
            (query_UX,) = self.linears.columns(narrow_UX, self.q_b_proj)
        return query_UX

    def _turn(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        return rotate(halves(x) if self.latent.interleaved else x, *rotation)
