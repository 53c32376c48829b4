"""A decoder that generates: prompts at once, then one token a sequence at a time.

Query, key and value are one matrix, gate and up another; `hf_views` shows them under Hugging Face's
names.
"""

# B sequences, P longest prompt, L keys in the attention window, H hidden, V vocabulary
# N kept heads a token, W width of a kept head

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.kernels.rms_norm import rms_norm
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.rotary import cos_and_sin
from rljob_runtime.models.expert_names import split_experts
from rljob_runtime.models.fused.feed_forward import make_feed_forward
from rljob_runtime.models.fused.heads import FusedHeads
from rljob_runtime.models.fused.latent import FusedLatent
from rljob_runtime.models.fused.step import New, Prefill, Step, make_step


class FusedDecoder:
    """Weights are uninitialised until they are copied into `hf_views`.

    max_length: of the longest sequence. Raises ConfigError where the model cannot have such.
    """

    def __init__(
        self, architecture: Architecture, *, max_length: int, dtype: torch.dtype, device: str
    ) -> None:
        a = self.architecture = architecture
        a.check_length(max_length)

        def new(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._embedding = new(a.vocab_size, a.hidden_size)
        self._head = self._embedding if a.tied else new(a.vocab_size, a.hidden_size)
        self._norm = new(a.hidden_size)
        self._layers = [_Layer(a, index, new) for index in range(a.num_layers)]
        cos, sin = cos_and_sin(a, torch.arange(max_length), dtype)
        self._rotation = cos.to(device), sin.to(device)

    def hf_views(self) -> dict[str, Tensor]:
        """The weights as files name them, sharing memory; a tied head once."""
        views = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self.architecture.tied:
            views["lm_head.weight"] = self._head
        for index, layer in enumerate(self._layers):
            for name, view in layer.views().items():
                views[f"model.layers.{index}.{name}"] = view
        return dict(split_experts(views.items()))

    def prefill(self, tokens_BP: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of prompts, [layers, tensors, B, N, P, W], and logits after each, [B, V] float32.

        tokens_BP: padded on the right with any token. What lies past a prompt's length is garbage.
        """
        rows, width = tokens_BP.shape
        hidden = F.embedding(tokens_BP.view(-1), self._embedding)
        cos, sin = (x[:width].repeat(rows, 1)[:, None] for x in self._rotation)
        at = Prefill(rows=rows, width=width, cos=cos, sin=sin)
        caches = []
        for layer in self._layers:
            hidden, kept = layer.prefill(hidden, at)
            caches.append(kept)
        last_B = torch.arange(rows, device=lengths_B.device) * width + lengths_B - 1
        return torch.stack(caches), self._logits(hidden.index_select(0, last_B))

    def decode(self, tokens_B: Tensor, positions_B: Tensor, cache: Tensor, window: int) -> Tensor:
        """Logits after one more token of each sequence, [B, V] float32; what is kept of it is stored.

        cache: [layers, tensors, at least B, N, at least L, W], sequence b in row b. window: L, more
        than every position. positions_B: each token's position.
        """
        hidden = F.embedding(tokens_B, self._embedding)
        at = make_step(self.architecture, positions_B, self._rotation, cache, window, hidden.dtype)
        for layer, kept in zip(self._layers, cache, strict=True):
            hidden = layer.decode(hidden, kept, at)
        return self._logits(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._norm, self.architecture.norm_epsilon)
        return F.linear(normed, self._head).float()


class _Layer:
    """Attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, architecture: Architecture, index: int, new: New) -> None:
        a = architecture
        self._attention = FusedLatent(a, a.latent, new) if a.latent else FusedHeads(a, new)
        self._feed_forward = make_feed_forward(a, index, new)
        self._attention_norm, self._feed_forward_norm = new(a.hidden_size), new(a.hidden_size)
        self._epsilon = a.norm_epsilon

    def views(self) -> dict[str, Tensor]:
        """The weights by their names within the layer."""
        return {
            "input_layernorm.weight": self._attention_norm,
            "post_attention_layernorm.weight": self._feed_forward_norm,
            **{f"self_attn.{name}": view for name, view in self._attention.views().items()},
            **{f"mlp.{name}": view for name, view in self._feed_forward.views().items()},
        }

    def prefill(self, hidden: Tensor, at: Prefill) -> tuple[Tensor, Tensor]:
        """[B*P, H] -> [B*P, H], and what is kept."""
        normed = rms_norm(hidden, self._attention_norm, self._epsilon)
        mixed, kept = self._attention.prefill(normed, at)
        return self._finish(hidden + mixed), kept

    def decode(self, hidden: Tensor, kept: Tensor, at: Step) -> Tensor:
        """[B, H] -> [B, H]."""
        normed = rms_norm(hidden, self._attention_norm, self._epsilon)
        return self._finish(hidden + self._attention.decode(normed, kept, at))

    def _finish(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._feed_forward_norm, self._epsilon)
        return hidden + self._feed_forward(normed)
