"""Attention with heads of their own: query, key and value are one matrix, all keys are kept.

Called by `fused_decoder`. Heads are those of the part of the model that is computed.
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
from rljob_runtime.models.fused.fused_weights import New, Weights, split_rows, wide
from rljob_runtime.models.fused.kept import KeptLayer, attend
from rljob_runtime.models.fused.part import Joins
from rljob_runtime.models.fused.step import Prefill, Step


class FusedHeads:
    """Keeps keys and values of each token, [2, rows, N, positions, D]."""

    def __init__(self, architecture: Architecture, joins: Joins, new: New) -> None:
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
        """The weights by their names within the attention."""
        a = self._architecture
        key_rows = a.num_kv_heads * a.head_dim
        rows = [a.num_heads * a.head_dim, key_rows, key_rows]
        views: dict[str, Weights] = {"o_proj.weight": self._output}
        if self._output_bias is not None:
            views["o_proj.bias"] = self._output_bias
        for kind, tensor in (("weight", self._qkv), ("bias", self._qkv_bias)):
            if tensor is not None:
                parts = zip(("q_proj", "k_proj", "v_proj"), split_rows(tensor, rows), strict=True)
                views |= {f"{name}.{kind}": part for name, part in parts}
        if self._norms is not None:
            views["q_norm.weight"], views["k_norm.weight"] = self._norms
        return views

    def prefill(self, normed: Tensor, at: Prefill) -> tuple[Tensor, Tensor]:
        """[B*P, H] -> [B*P, H], and what is kept."""
        a = self._architecture
        query_key, value = self._project(normed, at.cos, at.sin)
        heads = torch.cat([query_key, value], 1).view(at.rows, at.width, -1, a.head_dim)
        query, key, value = torch.split(
            heads.transpose(1, 2), [a.num_heads, a.num_kv_heads, a.num_kv_heads], dim=1
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=a.repeats > 1
        )
        mixed = mixed.transpose(1, 2).reshape(len(normed), -1)
        return self._mixed(mixed), torch.stack([key, value])

    def decode(self, normed: Tensor, kept: KeptLayer, at: Step) -> Tensor:
        """[B, H] -> [B, H]; the tokens' keys and values go into `kept`."""
        a, rows = self._architecture, len(normed)
        query_key, value = self._project(normed, at.cos, at.sin)
        query, key = torch.split(query_key, [a.num_heads, a.num_kv_heads], dim=1)
        flat = kept.rows.view(2, -1, a.head_dim)
        flat[0].index_copy_(0, at.places, key.reshape(-1, a.head_dim))
        flat[1].index_copy_(0, at.places, value.reshape(-1, a.head_dim))
        mixed = attend(
            query.reshape(rows * a.num_kv_heads, a.repeats, a.head_dim),
            (kept.rows[0], kept.rows[1]),
            (kept.prefixes[0], kept.prefixes[1]),
            mask=at.mask,
            reach=at.reach,
            scale=a.score_scale,
        )
        mixed = mixed.view(rows, -1)
        return self._mixed(mixed)

    def _project(self, normed: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated query and key heads, [tokens, A + N, D], and value heads, [tokens, N, D]."""
        a = self._architecture
        heads = product(normed, wide(self._qkv, normed.dtype), self._qkv_bias)
        heads = heads.view(len(normed), -1, a.head_dim)
        query_key, value = torch.split(heads, [a.num_heads + a.num_kv_heads, a.num_kv_heads], dim=1)
        if self._norms is not None:
            weights = self._norms.index_select(0, self._norm_of_head)
            query_key = rms_norm(query_key, weights, a.norm_epsilon)
        return rotate(query_key, cos, sin), value

    def _mixed(self, mixed: Tensor) -> Tensor:
        """Of values mixed by the heads, [tokens, A * D] -> [tokens, H]."""
        return self._joins.rows(mixed, wide(self._output, mixed.dtype), self._output_bias)
