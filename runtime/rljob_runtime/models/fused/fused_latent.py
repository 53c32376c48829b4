"""Multi-head latent attention that caches one narrow vector per token and attends to it directly.

The matrix that expands the latent to a head's key is multiplied into its query instead. The matrix that
expands it to a value is multiplied into the mixed latent (DeepSeek-V2, arXiv:2405.04434, §2.1.2). Prompts are
computed head by head. `fused_decoder` calls this. Heads are those of the model shard that is computed; the
cache has no heads.
"""

# B sequences, P longest prompt, H hidden, A heads
# C rank of the latent, R rotated width, S width without position, E value width

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture, LatentArchitecture
from rljob_runtime.models.blocks.latent_attention import LATENT_EPSILON
from rljob_runtime.models.blocks.rotary import halves
from rljob_runtime.models.fused.fused_weights import WeightFactory, Weights, wide
from rljob_runtime.models.fused.kept import LayerCache, attend
from rljob_runtime.models.fused.part import Joins
from rljob_runtime.models.fused.step import DecodeStep, Prefill


class FusedLatent:
    """Caches the latent and the rotated key of each token, [1, rows, 1, positions, C + R]."""

    def __init__(
        self,
        architecture: Architecture,
        sizes: LatentArchitecture,
        joins: Joins,
        new: WeightFactory,
    ) -> None:
        self._joins, self._dtype = joins, new.dtype
        a, hidden, heads = architecture, architecture.hidden_size, architecture.num_heads
        self._sizes, self._heads, self._scale = sizes, heads, a.score_scale
        query_rows = heads * (sizes.nope_dim + sizes.rope_dim)
        cached_rows, rank = sizes.kv_rank + sizes.rope_dim, sizes.query_rank
        self._views: dict[str, Weights] = {
            "kv_a_proj_with_mqa.weight": new.matrix(cached_rows, hidden),
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
            self._views["kv_a_proj_with_mqa.bias"] = new(cached_rows)
            if rank is not None:
                self._views["q_a_proj.bias"] = new(rank)
        if a.output_bias:
            self._views["o_proj.bias"] = new(hidden)

    def views(self) -> dict[str, Weights]:
        """Return the weights by their names within the attention."""
        return self._views

    def prefill(self, normed: Tensor, prefill: Prefill) -> tuple[Tensor, Tensor]:
        """Map [B*P, H] to [B*P, H], and return what to cache."""
        sizes, shape = self._sizes, (prefill.rows, prefill.width, self._heads, -1)
        query = torch.cat(self._queries(normed, prefill.cos, prefill.sin), dim=-1).view(shape)
        cached = self._compress(normed, prefill.cos, prefill.sin)
        latent, key_turned = torch.split(cached, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        expanded = product(latent, self._weight("kv_b_proj.weight")).view(shape)
        key, value = torch.split(expanded, [sizes.nope_dim, sizes.value_dim], dim=-1)
        key_turned = key_turned.view(prefill.rows, prefill.width, 1, -1).expand(
            -1, -1, self._heads, -1
        )
        key = torch.cat([key, key_turned], dim=-1)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self._scale)
        mixed = mixed.transpose(1, 2).reshape(len(normed), -1)
        return self._output(mixed), cached.view(1, prefill.rows, 1, prefill.width, -1)

    def decode(self, normed: Tensor, cache: LayerCache, step: DecodeStep) -> Tensor:
        """Map [B, H] to [B, H]; the tokens' latents and rotated keys are written to `cache`."""
        sizes = self._sizes
        query_BAS, turned_BAR = self._queries(normed, step.cos, step.sin)
        fresh = self._compress(normed, step.cos, step.sin)
        cache.rows.view(-1, fresh.shape[1]).index_copy_(0, step.cache_rows, fresh)
        expansion = self._weight("kv_b_proj.weight").view(self._heads, -1, sizes.kv_rank)
        key_ASC, value_AEC = torch.split(expansion, [sizes.nope_dim, sizes.value_dim], dim=1)
        absorbed_BAC = torch.bmm(query_BAS.transpose(0, 1), key_ASC).transpose(0, 1)
        queries = torch.cat([absorbed_BAC, turned_BAR], dim=-1)
        keys, prefix_keys = cache.rows[0], cache.prefixes[0]
        mixed_BAC = attend(
            queries,
            (keys, keys[..., : sizes.kv_rank]),
            (prefix_keys, prefix_keys[..., : sizes.kv_rank]),
            mask=step.mask,
            reach=step.reach,
            scale=self._scale,
        )
        mixed_ABE = torch.bmm(mixed_BAC.transpose(0, 1), value_AEC.transpose(1, 2))
        return self._output(mixed_ABE.transpose(0, 1).reshape(len(normed), -1))

    def _queries(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries without position [tokens, A, S] and rotated [tokens, A, R]."""
        weight, sizes = self._weight, self._sizes
        if sizes.query_rank is None:
            query = product(normed, weight("q_proj.weight"))
        else:
            narrow = product(normed, weight("q_a_proj.weight"), self._bias("q_a_proj.bias"))
            narrow = rms_norm(narrow, weight("q_a_layernorm.weight"), LATENT_EPSILON)
            query = product(narrow, weight("q_b_proj.weight"))
        query = query.view(len(normed), self._heads, -1)
        still, turned = torch.split(query, [sizes.nope_dim, sizes.rope_dim], dim=-1)
        return still, self._turn(turned, cos, sin)

    def _compress(self, normed: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return latents and rotated keys [tokens, C + R]."""
        weight, sizes = self._weight, self._sizes
        bias = self._bias("kv_a_proj_with_mqa.bias")
        latent_and_key = product(normed, weight("kv_a_proj_with_mqa.weight"), bias)
        latent, key = torch.split(latent_and_key, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        latent = rms_norm(latent, weight("kv_a_layernorm.weight"), LATENT_EPSILON)
        return torch.cat([latent, self._turn(key[:, None], cos, sin)[:, 0]], dim=-1)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotate(halves(x) if self._sizes.interleaved else x, cos, sin)

    def _output(self, mixed: Tensor) -> Tensor:
        weight, bias = self._weight("o_proj.weight"), self._bias("o_proj.bias")
        return self._joins.rows(mixed, weight, bias)

    def _weight(self, name: str) -> Tensor:
        return wide(self._views[name], self._dtype)

    def _bias(self, name: str) -> Tensor | None:
        return self._weight(name) if name in self._views else None
