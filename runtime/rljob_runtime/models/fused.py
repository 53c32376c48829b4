"""A dense decoder in the form that generates fast: fused matrices, one token a sequence at a time.

Called by the `torch` rollout engine; computes what `decoder` computes, without gradients. Query,
key and value are one matrix, gate and up another; `hf_views` shows them under Hugging Face's names.
"""

# B sequences, P longest prompt, L keys in the attention window, H hidden, V vocabulary
# A query heads, N key/value heads, R = A / N, D head width

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.kernels.rms_norm import rms_norm
from rljob_runtime.kernels.rope import rotate
from rljob_runtime.kernels.swiglu import swiglu
from rljob_runtime.models.architecture import Architecture, inverse_frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """Weights of a layer; qkv stacks query, key and value rows, gate_up gate and up rows.

    query_key_norm: [2, D], the query's and the key's.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    query_key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    attention_norm: Tensor
    feed_forward_norm: Tensor


class FusedDecoder:
    """Weights are uninitialised until they are copied into `hf_views`."""

    def __init__(
        self, architecture: Architecture, *, max_length: int, dtype: torch.dtype, device: str
    ) -> None:
        a = self.architecture = architecture
        self._dtype, self._device = dtype, device
        self._embedding = self._new(a.vocab_size, a.hidden_size)
        self._head = self._embedding if a.tied else self._new(a.vocab_size, a.hidden_size)
        self._norm = self._new(a.hidden_size)
        self._layers = [self._new_layer() for _ in range(a.num_layers)]
        angles = torch.arange(max_length)[:, None].float() * inverse_frequencies(a.head_dim, a.rope)
        heads = torch.tensor([0] * a.num_heads + [1] * a.num_kv_heads, device=device)
        self._norm_of_head = heads  # row of `query_key_norm` for each query and key head
        self._cos, self._sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)

    def hf_views(self) -> dict[str, Tensor]:
        """The weights by Hugging Face name, sharing memory; a tied head once."""
        views = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self.architecture.tied:
            views["lm_head.weight"] = self._head
        for index, layer in enumerate(self._layers):
            for name, view in self._layer_views(layer).items():
                views[f"model.layers.{index}.{name}"] = view
        return views

    def prefill(self, tokens_BP: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of prompts, [layers, 2, B, N, P, D], and logits after each, [B, V] float32.

        tokens_BP: padded on the right with any token. What lies past a prompt's length is garbage.
        """
        a = self.architecture
        rows, width = tokens_BP.shape
        hidden = F.embedding(tokens_BP.view(-1), self._embedding)
        cos = self._cos[:width].repeat(rows, 1)[:, None]
        sin = self._sin[:width].repeat(rows, 1)[:, None]
        caches = []
        for layer in self._layers:
            query_key, value = self._project(layer, hidden, cos, sin)
            heads = torch.cat([query_key, value], 1).view(rows, width, -1, a.head_dim)
            query, key, value = torch.split(
                heads.transpose(1, 2), [a.num_heads, a.num_kv_heads, a.num_kv_heads], dim=1
            )
            caches.append(torch.stack([key, value]))
            mixed = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=a.repeats > 1
            )
            hidden = self._finish(layer, hidden, mixed.transpose(1, 2).reshape(rows * width, -1))
        last_B = torch.arange(rows, device=lengths_B.device) * width + lengths_B - 1
        return torch.stack(caches), self._logits(hidden.index_select(0, last_B))

    def decode(self, tokens_B: Tensor, positions_B: Tensor, cache: Tensor, window: int) -> Tensor:
        """Logits after one more token of each sequence, [B, V] float32; its key and value are stored.

        cache: [layers, 2, at least B, N, at least L, D], sequence b in row b. window: L, more than
        every position. positions_B: each token's position.
        """
        a = self.architecture
        rows, slots, capacity = len(tokens_B), cache.shape[2], cache.shape[4]
        hidden = F.embedding(tokens_B, self._embedding)
        cos = self._cos.index_select(0, positions_B)[:, None]
        sin = self._sin.index_select(0, positions_B)[:, None]
        positions = positions_B.repeat_interleave(a.num_kv_heads)  # one a key head
        mask = _window_mask(positions, window, hidden.dtype)
        places = positions + torch.arange(len(positions), device=positions.device) * capacity
        for layer, kept in zip(self._layers, cache, strict=True):
            query_key, value = self._project(layer, hidden, cos, sin)
            query, key = torch.split(query_key, [a.num_heads, a.num_kv_heads], dim=1)
            flat = kept.view(2, slots * a.num_kv_heads * capacity, a.head_dim)
            flat[0].index_copy_(0, places, key.reshape(-1, a.head_dim))
            flat[1].index_copy_(0, places, value.reshape(-1, a.head_dim))
            keys, values = kept[:, :rows, :, :window].flatten(1, 2)
            queries = query.reshape(rows * a.num_kv_heads, a.repeats, a.head_dim)
            scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=a.head_dim**-0.5)
            shares = scores.softmax(-1, dtype=torch.float32).to(values.dtype)
            mixed = torch.bmm(shares, values).view(rows, -1)
            hidden = self._finish(layer, hidden, mixed)
        return self._logits(hidden)

    def _project(
        self, layer: FusedLayer, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotated query and key heads, [tokens, A + N, D], and value heads, [tokens, N, D]."""
        a = self.architecture
        normed = rms_norm(hidden, layer.attention_norm, a.norm_epsilon)
        heads = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(hidden), -1, a.head_dim)
        query_key, value = torch.split(heads, [a.num_heads + a.num_kv_heads, a.num_kv_heads], dim=1)
        if layer.query_key_norm is not None:
            weights = layer.query_key_norm.index_select(0, self._norm_of_head)
            query_key = rms_norm(query_key, weights, a.norm_epsilon)
        return rotate(query_key, cos, sin), value

    def _finish(self, layer: FusedLayer, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The rest of a layer after attention has mixed the values."""
        hidden = hidden + F.linear(mixed, layer.output, layer.output_bias)
        normed = rms_norm(hidden, layer.feed_forward_norm, self.architecture.norm_epsilon)
        inner = swiglu(F.linear(normed, layer.gate_up, layer.gate_up_bias))
        return hidden + F.linear(inner, layer.down, layer.down_bias)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._norm, self.architecture.norm_epsilon)
        return F.linear(normed, self._head).float()

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def _new_layer(self) -> FusedLayer:
        a, hidden = self.architecture, self.architecture.hidden_size
        qkv_rows = (a.num_heads + 2 * a.num_kv_heads) * a.head_dim
        return FusedLayer(
            qkv=self._new(qkv_rows, hidden),
            qkv_bias=self._new(qkv_rows) if a.qkv_bias else None,
            query_key_norm=self._new(2, a.head_dim) if a.qk_norm else None,
            output=self._new(hidden, a.num_heads * a.head_dim),
            output_bias=self._new(hidden) if a.output_bias else None,
            gate_up=self._new(2 * a.intermediate_size, hidden),
            gate_up_bias=self._new(2 * a.intermediate_size) if a.mlp_bias else None,
            down=self._new(hidden, a.intermediate_size),
            down_bias=self._new(hidden) if a.mlp_bias else None,
            attention_norm=self._new(hidden),
            feed_forward_norm=self._new(hidden),
        )

    def _layer_views(self, layer: FusedLayer) -> dict[str, Tensor]:
        a = self.architecture
        key_rows = a.num_kv_heads * a.head_dim
        packed = {
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"): (
                [a.num_heads * a.head_dim, key_rows, key_rows],
                {"weight": layer.qkv, "bias": layer.qkv_bias},
            ),
            ("mlp.gate_proj", "mlp.up_proj"): (
                [a.intermediate_size, a.intermediate_size],
                {"weight": layer.gate_up, "bias": layer.gate_up_bias},
            ),
            ("self_attn.o_proj",): (
                [a.hidden_size],
                {"weight": layer.output, "bias": layer.output_bias},
            ),
            ("mlp.down_proj",): ([a.hidden_size], {"weight": layer.down, "bias": layer.down_bias}),
        }
        views = {
            "input_layernorm.weight": layer.attention_norm,
            "post_attention_layernorm.weight": layer.feed_forward_norm,
        }
        for modules, (rows, tensors) in packed.items():
            for kind, tensor in tensors.items():
                if tensor is not None:
                    parts = torch.split(tensor, rows)
                    views |= {f"{m}.{kind}": p for m, p in zip(modules, parts, strict=True)}
        if layer.query_key_norm is not None:
            views["self_attn.q_norm.weight"], views["self_attn.k_norm.weight"] = (
                layer.query_key_norm
            )
        return views


def _window_mask(positions: Tensor, window: int, dtype: torch.dtype) -> Tensor:
    """Additive mask [rows, 1, window]: each row sees the keys up to its position."""
    hidden = torch.arange(window, device=positions.device) > positions[:, None]
    mask = torch.zeros(hidden.shape, dtype=dtype, device=positions.device)
    return mask.masked_fill_(hidden, float("-inf"))[:, None]
