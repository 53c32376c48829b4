"""Multi-head latent attention: keys and values of all heads from one narrow vector a token.

DeepSeek-V2, arXiv:2405.04434, §2.1. In training every head's keys and values are made from the
latent; the rollout's form (`fused.latent`) attends to the latent itself.
"""

# U packed tokens, H hidden, A heads, C rank of the latent, R rotated width, E value width
# S width without position, D = S + R

import torch
from torch import Tensor, nn

from rljob_runtime.kernels.rope import rotate
from rljob_runtime.models.architecture import Architecture, Latent
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.norm import Norm
from rljob_runtime.models.blocks.packed_attention import attend
from rljob_runtime.models.blocks.rotary import halves
from rljob_runtime.models.packing import Packing

LATENT_EPSILON = 1e-6  # of the norms of compressed vectors; config.json's is for the others


class LatentAttention(nn.Module):
    """Causal attention of prompts, and of responses over their prompt and themselves."""

    def __init__(self, architecture: Architecture, latent: Latent, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, heads = architecture.hidden_size, architecture.num_heads
        query_rows, bias = heads * architecture.head_dim, architecture.qkv_bias
        self.latent, self.scale, self.num_heads = latent, architecture.score_scale, heads
        if latent.query_rank is None:
            self.q_proj = Matrix(query_rows, hidden, dtype)
        else:
            self.q_a_proj = Matrix(latent.query_rank, hidden, dtype, with_bias=bias)
            self.q_a_layernorm = Norm(latent.query_rank, LATENT_EPSILON, dtype)
            self.q_b_proj = Matrix(query_rows, latent.query_rank, dtype)
        kept = latent.kv_rank + latent.rope_dim
        self.kv_a_proj_with_mqa = Matrix(kept, hidden, dtype, with_bias=bias)
        self.kv_a_layernorm = Norm(latent.kv_rank, LATENT_EPSILON, dtype)
        made = heads * (latent.nope_dim + latent.value_dim)
        self.kv_b_proj = Matrix(made, latent.kv_rank, dtype)
        self.o_proj = Matrix(
            hidden, heads * latent.value_dim, dtype, with_bias=architecture.output_bias
        )

    def forward(self, x_UH: Tensor, packing: Packing, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[U, H] -> [U, H]. rotation: cos and sin, [U, 1, R/2] each."""
        sizes, num_tokens, heads = self.latent, len(x_UH), self.num_heads
        query_UAD = self._query(x_UH).view(num_tokens, heads, -1)
        query_UAS, turned_UAR = torch.split(query_UAD, [sizes.nope_dim, sizes.rope_dim], dim=-1)
        kept_UX = self.kv_a_proj_with_mqa(x_UH)
        latent_UC, key_UR = torch.split(kept_UX, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        made = self.kv_b_proj(self.kv_a_layernorm(latent_UC)).view(num_tokens, heads, -1)
        key_UAS, value_UAE = torch.split(made, [sizes.nope_dim, sizes.value_dim], dim=-1)
        turned_key_UAR = self._turn(key_UR[:, None], rotation).expand(-1, heads, -1)
        query_UAD = torch.cat([query_UAS, self._turn(turned_UAR, rotation)], dim=-1)
        key_UAD = torch.cat([key_UAS, turned_key_UAR], dim=-1)
        mixed_UX = attend(query_UAD, key_UAD, value_UAE, packing, scale=self.scale)
        output_UH: Tensor = self.o_proj(mixed_UX)
        return output_UH

    def _query(self, x_UH: Tensor) -> Tensor:
        if self.latent.query_rank is None:
            query_UX: Tensor = self.q_proj(x_UH)
        else:
            query_UX = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_UH)))
        return query_UX

    def _turn(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        return rotate(halves(x) if self.latent.interleaved else x, *rotation)
