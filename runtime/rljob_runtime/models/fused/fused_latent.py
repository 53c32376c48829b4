"""Multi-head latent attention that keeps one narrow vector a token and attends to it directly.

What makes a head's key from the latent is multiplied into its query instead, and what makes its
value into the mixed latent (DeepSeek-V2, arXiv:2405.04434, §2.1.2). Prompts are computed head by head.
Called by `fused_decoder`. Heads are those of the part of the model that is computed; what is kept has none.
"""

# B sequences, P longest prompt, H hidden, A heads
# C rank of the latent, R rotated width, S width without position, E value width

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture, Latent
from rljob_runtime.models.blocks.latent_attention import LATENT_EPSILON
from rljob_runtime.models.blocks.rotary import halves
from rljob_runtime.models.fused.fused_weights import New, Weights, wide
from rljob_runtime.models.fused.kept import KeptLayer, attend
from rljob_runtime.models.fused.part import Joins
from rljob_runtime.models.fused.step import Prefill, Step


class FusedLatent:
    """Keeps latent and rotated key of each token, [1, rows, 1, positions, C + R]."""

    def __init__(self, architecture: Architecture, sizes: Latent, joins: Joins, new: New) -> None:
        self._joins, self._dtype = joins, new.dtype
        a, hidden, heads = architecture, architecture.hidden_size, architecture.num_heads
        self._sizes, self._heads, self._scale = sizes, heads, a.score_scale
        query_rows = heads * (sizes.nope_dim + sizes.rope_dim)
        kept, rank = sizes.kv_rank + sizes.rope_dim, sizes.query_rank
        self._views: dict[str, Weights] = {
            "kv_a_proj_with_mqa.weight": new.matrix(kept, hidden),
            "kv_a_layernorm.weight": new(sizes.kv_rank),
            "kv_b_proj.weight": new.matrix(
                heads * (sizes.nope_dim + sizes.value_dim), sizes.kv_rank
            ),
            "o_proj.weight": new.matrix(hidden, heads * sizes.value_dim, widest=joins.widest),
        }
        if rank is None:
            self._views["q_proj.weight"] = new.matrix(query_rows, hidden)
        else:
            self._views["q_a_proj.weight"] = new.matrix(rank, hidden)
            self._views["q_a_layernorm.weight"] = new(rank)
            self._views["q_b_proj.weight"] = new.matrix(query_rows, rank)
        if a.qkv_bias:
            self._views["kv_a_proj_with_mqa.bias"] = new(kept)
            if rank is not None:
                self._views["q_a_proj.bias"] = new(rank)
        if a.output_bias:
            self._views["o_proj.bias"] = new(hidden)

    def views(self) -> dict[str, Weights]:
        """The weights by their names within the attention."""
        return self._views

    def prefill(self, normed: Tensor, at: Prefill) -> tuple[Tensor, Tensor]:
        """[B*P, H] -> [B*P, H], and what is kept."""
        sizes, shape = self._sizes, (at.rows, at.width, self._heads, -1)
        query = torch.cat(self._queries(normed, at.cos, at.sin), dim=-1).view(shape)
        kept = self._kept(normed, at.cos, at.sin)
        latent, key_turned = torch.split(kept, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        made = product(latent, self._held("kv_b_proj.weight")).view(shape)
        key, value = torch.split(made, [sizes.nope_dim, sizes.value_dim], dim=-1)
        key_turned = key_turned.view(at.rows, at.width, 1, -1).expand(-1, -1, self._heads, -1)
        key = torch.cat([key, key_turned], dim=-1)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self._scale)
        mixed = mixed.transpose(1, 2).reshape(len(normed), -1)
        return self._output(mixed), kept.view(1, at.rows, 1, at.width, -1)

    def decode(self, normed: Tensor, kept: KeptLayer, at: Step) -> Tensor:
        """[B, H] -> [B, H]; what is kept of the tokens goes into `kept`."""
        sizes = self._sizes
        query_BAS, turned_BAR = self._queries(normed, at.cos, at.sin)
        fresh = self._kept(normed, at.cos, at.sin)
        kept.rows.view(-1, fresh.shape[1]).index_copy_(0, at.places, fresh)
        made = self._held("kv_b_proj.weight").view(self._heads, -1, sizes.kv_rank)
        key_ASC, value_AEC = torch.split(made, [sizes.nope_dim, sizes.value_dim], dim=1)
        absorbed_BAC = torch.bmm(query_BAS.transpose(0, 1), key_ASC).transpose(0, 1)
        queries = torch.cat([absorbed_BAC, turned_BAR], dim=-1)
        keys, prefix_keys = kept.rows[0], kept.prefixes[0]
        mixed_BAC = attend(
            queries,
            (keys, keys[..., : sizes.kv_rank]),
            (prefix_keys, prefix_keys[..., : sizes.kv_rank]),
            mask=at.mask,
            reach=at.reach,
            scale=self._scale,
        )
        mixed_ABE = torch.bmm(mixed_BAC.transpose(0, 1), value_AEC.transpose(1, 2))
        return self._output(mixed_ABE.transpose(0, 1).reshape(len(normed), -1))

    def _queries(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries without position [tokens, A, S] and rotated [tokens, A, R]."""
        held, sizes = self._held, self._sizes
        if sizes.query_rank is None:
            query = product(normed, held("q_proj.weight"))
        else:
            narrow = product(normed, held("q_a_proj.weight"), self._bias("q_a_proj.bias"))
            narrow = rms_norm(narrow, held("q_a_layernorm.weight"), LATENT_EPSILON)
            query = product(narrow, held("q_b_proj.weight"))
        query = query.view(len(normed), self._heads, -1)
        still, turned = torch.split(query, [sizes.nope_dim, sizes.rope_dim], dim=-1)
        return still, self._turn(turned, cos, sin)

    def _kept(self, normed: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Latents and rotated keys [tokens, C + R]."""
        held, sizes = self._held, self._sizes
        bias = self._bias("kv_a_proj_with_mqa.bias")
        both = product(normed, held("kv_a_proj_with_mqa.weight"), bias)
        latent, key = torch.split(both, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        latent = rms_norm(latent, held("kv_a_layernorm.weight"), LATENT_EPSILON)
        return torch.cat([latent, self._turn(key[:, None], cos, sin)[:, 0]], dim=-1)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(halves(x) if self._sizes.interleaved else x, cos, sin)

    def _output(self, mixed: Tensor) -> Tensor:
        weight, bias = self._held("o_proj.weight"), self._bias("o_proj.bias")
        return self._joins.rows(mixed, weight, bias)

    def _held(self, name: str) -> Tensor:
        return wide(self._views[name], self._dtype)

    def _bias(self, name: str) -> Tensor | None:
        return self._held(name) if name in self._views else None
