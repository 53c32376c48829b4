"""Attention with separate keys and values per head: one matrix for query, key and value; all keys are cached.

`fused_decoder` calls this. Heads are those of the model shard that is computed.
"""

# B sequences, P longest prompt, H hidden
# A query heads, N key/value heads, D head width

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.fused.fused_weights import WeightFactory, Weights, split_rows, wide
from rljob_runtime.models.fused.kept import LayerCache, attend
from rljob_runtime.models.fused.part import Joins
from rljob_runtime.models.fused.step import DecodeStep, Prefill


class FusedHeads:
    """Caches keys and values of each token, [2, rows, N, positions, D]."""

    def __init__(self, architecture: Architecture, joins: Joins, new: WeightFactory) -> None:
        a = self._architecture = architecture
        self._joins = joins
        rows = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim
        self._qkv = new.matrix(rows, a.hidden_size)
        self._qkv_bias = new(rows) if a.qkv_bias else None
        self._output = new.matrix(a.hidden_size, a.num_heads * a.head_dim, widest=joins.widest)
        self._output_bias = new(a.hidden_size) if a.output_bias else None
        self._norms = new(2, a.head_dim) if a.qk_norm else None  # the query's and the key's
        heads = [0] * a.num_heads + [1] * a.num_kv_heads
        self._norm_of_head = torch.tensor(heads, device=new.device)

    def views(self) -> dict[str, Weights]:
        """Return the weights by their names within the attention."""
        a = self._architecture
        key_rows = a.num_kv_heads * a.head_dim
        rows = [a.num_heads * a.head_dim, key_rows, key_rows]
        views: dict[str, Weights] = {"o_proj.weight": self._output}
        if self._output_bias is not None:
            views["o_proj.bias"] = self._output_bias
        for kind, tensor in (("weight", self._qkv), ("bias", self._qkv_bias)):
            if tensor is not None:
                named_views = zip(
                    ("q_proj", "k_proj", "v_proj"), split_rows(tensor, rows), strict=True
                )
                views |= {f"{name}.{kind}": view for name, view in named_views}
        if self._norms is not None:
            views["q_norm.weight"], views["k_norm.weight"] = self._norms
        return views

    def prefill(self, normed: Tensor, prefill: Prefill) -> tuple[Tensor, Tensor]:
        """Map [B*P, H] to [B*P, H], and return what to cache."""
        a = self._architecture
        query_key, value = self._project(normed, prefill.cos, prefill.sin)
        heads = torch.cat([query_key, value], 1).view(prefill.rows, prefill.width, -1, a.head_dim)
        query, key, value = torch.split(
            heads.transpose(1, 2), [a.num_heads, a.num_kv_heads, a.num_kv_heads], dim=1
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=a.repeats > 1
        )
        mixed = mixed.transpose(1, 2).reshape(len(normed), -1)
        return self._mixed(mixed), torch.stack([key, value])

    def decode(self, normed: Tensor, cache: LayerCache, step: DecodeStep) -> Tensor:
        """Map [B, H] to [B, H]; the tokens' keys and values are written to `cache`."""
        a, rows = self._architecture, len(normed)
        query_key, value = self._project(normed, step.cos, step.sin)
        query, key = torch.split(query_key, [a.num_heads, a.num_kv_heads], dim=1)
        flat = cache.rows.view(2, -1, a.head_dim)
        flat[0].index_copy_(0, step.cache_rows, key.reshape(-1, a.head_dim))
        flat[1].index_copy_(0, step.cache_rows, value.reshape(-1, a.head_dim))
        mixed = attend(
            query.reshape(rows * a.num_kv_heads, a.repeats, a.head_dim),
            (cache.rows[0], cache.rows[1]),
            (cache.prefixes[0], cache.prefixes[1]),
            mask=step.mask,
            reach=step.reach,
            scale=a.score_scale,
        )
        mixed = mixed.view(rows, -1)
        return self._mixed(mixed)

    def _project(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Return rotated query and key heads, [tokens, A + N, D], and value heads, [tokens, N, D]."""
        a = self._architecture
        heads = product(normed, wide(self._qkv, normed.dtype), self._qkv_bias)
        heads = heads.view(len(normed), -1, a.head_dim)
        query_key, value = torch.split(heads, [a.num_heads + a.num_kv_heads, a.num_kv_heads], dim=1)
        if self._norms is not None:
            weights = self._norms.index_select(0, self._norm_of_head)
            query_key = rms_norm(query_key, weights, a.norm_epsilon)
        return rotate(query_key, cos, sin), value

    def _mixed(self, mixed: Tensor) -> Tensor:
        """Map values mixed by the heads, [tokens, A * D], to [tokens, H]."""
        return self._joins.rows(mixed, wide(self._output, mixed.dtype), self._output_bias)
