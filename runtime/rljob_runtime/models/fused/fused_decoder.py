"""A decoder that generates, or a shard of one: full prompts first, then one token per sequence at a time.

Query, key and value are one matrix, gate and up another; `hf_views` returns them under Hugging Face's names.
The `torch` rollout engine calls this; it has no ranks: shards communicate through the `Joins` of `part`.
"""

# B sequences, P longest prompt, H hidden, V vocabulary, N cached heads per token, W width of a cached head
# U tokens of a pass, M layers with experts, K experts of a token
# H is the full model's, all other sizes are the shard's

from collections.abc import Callable

import torch
from torch import Tensor

from rljob_api.model.tensors import EMBEDDING, HEAD, NORM
from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.kernels.rms_norm import rms_norm
from rljob_runtime.models.blocks.rotary import cos_and_sin
from rljob_runtime.models.expert_names import split_experts
from rljob_runtime.models.fused.feed_forward import FusedExperts, make_feed_forward
from rljob_runtime.models.fused.fused_heads import FusedHeads
from rljob_runtime.models.fused.fused_latent import FusedLatent
from rljob_runtime.models.fused.fused_weights import WeightFactory, Weights
from rljob_runtime.models.fused.kept import KVCache, LayerCache, Reach
from rljob_runtime.models.fused.part import Joins, ModelShard
from rljob_runtime.models.fused.step import DecodeStep, PictureInputs, Prefill, make_decode_step
from rljob_runtime.models.routes import packed_dtype

StorePrompt = Callable[[int, Tensor], None]
"""Receives a layer's local number and what it caches of prompts, [tensors, B, N, P, W]."""


class FusedDecoder:
    """A decoder for generation. Weights are uninitialised until they are copied into `hf_views`.

    new: creates the weights. max_length: of the longest sequence. keeps_routes: whether `routes` will be
    called. Raises ConfigError if the model has no positions for max_length.
    """

    def __init__(
        self,
        shard: ModelShard,
        joins: Joins,
        new: WeightFactory,
        *,
        max_length: int,
        keeps_routes: bool = False,
    ) -> None:
        a = self.sizes = shard.sizes
        self._shard, self._joins = shard, joins
        a.check_length(max_length)
        self._ends = _new_ends(shard, new)
        self._layers = [_Layer(shard, index, joins, new) for index in shard.layers]
        self.keeps_routes, self._log, self._tokens = keeps_routes, list[Tensor](), 0
        if keeps_routes:
            for layer in self._layers:
                layer.log_routes(self._log)
        cos, sin = cos_and_sin(a, torch.arange(max_length), new.dtype)
        self._rotation = cos.to(new.device), sin.to(new.device)

    def hf_views(self) -> dict[str, Weights]:
        """Return the weights under their names in files, sharing memory; a tied head once."""
        views: dict[str, Weights] = dict(self._ends)
        for index, layer in zip(self._shard.layers, self._layers, strict=True):
            for name, view in layer.views().items():
                views[f"model.layers.{index}.{name}"] = view
        return dict(split_experts(views.items(), first=self._shard.experts.start))

    def prefill(
        self,
        tokens_BP: Tensor,
        lengths_B: Tensor,
        store_prompt: StorePrompt,
        picture_inputs: PictureInputs | None = None,
    ) -> Tensor:
        """Return logits after each of these prompts, [B, V] float32; each layer passes its cache entries to
        `store_prompt`.

        tokens_BP: padded on the right with any token; cache entries of padding are garbage. picture_inputs:
        of the prompts' pictures. A shard without the model's last layer returns no logits: [B, 0].
        """
        hidden = self._run(tokens_BP, store_prompt, picture_inputs)
        rows, width = tokens_BP.shape
        last_B = torch.arange(rows, device=lengths_B.device) * width + lengths_B - 1
        return self._logits(hidden, last_B)

    def score(self, tokens_BP: Tensor) -> Tensor:
        """Return logits after each token of these prompts, [B*P, V], otherwise as in `prefill`; nothing is
        cached."""
        return self._logits(self._run(tokens_BP, lambda layer, values: None))

    def decode(self, tokens_B: Tensor, cache: KVCache, reach: Reach) -> Tensor:
        """Return logits after one more token of each sequence, as in `prefill`; the token is added to the
        cache."""
        hidden = self._enter(tokens_B)
        step = make_decode_step(self.sizes, reach, self._rotation, cache, hidden.dtype)
        for layer, layer_cache in zip(self._layers, cache.layers(), strict=True):
            hidden = layer.decode(hidden, layer_cache, step)
        return self._logits(hidden)

    def routes(self) -> Tensor:
        """Return the experts of the last pass's tokens in this shard's sparse layers.

        The result is [U, M, K] on the host, of `packed_dtype`.
        """
        experts = self.sizes.experts
        assert self.keeps_routes and experts is not None, "nobody has noted who goes to which"
        if not self._log:
            return torch.empty(self._tokens, 0, experts.chosen, dtype=packed_dtype(experts))
        return torch.stack(self._log, 1).cpu()

    def idle(self) -> bool:
        """Run a pass without tokens where experts are shared with shards that may have some.

        Returns False once no shard has tokens.
        """
        if not self._joins.begin(0):
            return False
        self._log.clear()
        for layer in self._layers:
            layer.idle()
        return True

    def _run(
        self,
        tokens_BP: Tensor,
        store_prompt: StorePrompt,
        picture_inputs: PictureInputs | None = None,
    ) -> Tensor:
        """Return hidden states after this shard's last layer, [B*P, H]."""
        rows, width = tokens_BP.shape
        hidden = self._enter(tokens_BP.reshape(-1))
        pictured = None if picture_inputs is None else picture_inputs.pictured
        if picture_inputs is None:
            cos, sin = (x[:width].repeat(rows, 1) for x in self._rotation)
        else:
            cos, sin = cos_and_sin(self.sizes, picture_inputs.positions, hidden.dtype)
        if pictured is not None and self._shard.first:
            hidden = pictured.enter(hidden)
        prefill = Prefill(rows=rows, width=width, cos=cos[:, None], sin=sin[:, None])
        for index, layer in enumerate(self._layers):
            hidden, cached = layer.prefill(hidden, prefill)
            store_prompt(index, cached)
            if pictured is not None:
                hidden = pictured.follow(self._shard.layers[index], hidden)
        return hidden

    def _enter(self, tokens_U: Tensor) -> Tensor:
        """Return hidden states before this shard's first layer."""
        self._joins.begin(len(tokens_U))
        self._log.clear()
        self._tokens = len(tokens_U)
        if self._shard.first:
            return self._joins.embed(tokens_U, self._ends[EMBEDDING])
        rotation = self._rotation[0]
        return self._joins.arrive(rotation.new_empty(len(tokens_U), self.sizes.hidden_size))

    def _logits(self, hidden: Tensor, rows_B: Tensor | None = None) -> Tensor:
        """Return logits of these rows, or of all. If further layers follow, send them the hidden states
        instead."""
        if not self._shard.last:
            self._joins.hand_on(hidden)
            return hidden.new_empty(len(hidden if rows_B is None else rows_B), 0)
        if rows_B is not None:
            hidden = hidden.index_select(0, rows_B)
        normed = rms_norm(hidden, self._ends[NORM], self.sizes.norm_epsilon)
        return product(normed, self._ends[EMBEDDING if self.sizes.tied else HEAD]).float()


def _new_ends(shard: ModelShard, new: WeightFactory) -> dict[str, Tensor]:
    """Create the weights outside of the layers, by Hugging Face name."""
    a = shard.sizes
    ends = {}
    if shard.first or (shard.last and a.tied):
        ends[EMBEDDING] = new(a.vocab_size, a.hidden_size)
    if shard.last:
        ends[NORM] = new(a.hidden_size)
    if shard.last and not a.tied:
        ends[HEAD] = new(a.vocab_size, a.hidden_size)
    return ends


class _Layer:
    """Attention and feed-forward, each with a norm before it and a residual."""

    def __init__(self, shard: ModelShard, index: int, joins: Joins, new: WeightFactory) -> None:
        a = shard.sizes
        self._attention = (
            FusedLatent(a, a.latent, joins, new) if a.latent else FusedHeads(a, joins, new)
        )
        self._feed_forward = make_feed_forward(shard, index, joins, new)
        self._attention_norm, self._feed_forward_norm = new(a.hidden_size), new(a.hidden_size)
        self._epsilon = a.norm_epsilon

    def views(self) -> dict[str, Weights]:
        """Return the weights by their names within the layer."""
        return {
            "input_layernorm.weight": self._attention_norm,
            "post_attention_layernorm.weight": self._feed_forward_norm,
            **{f"self_attn.{name}": view for name, view in self._attention.views().items()},
            **{f"mlp.{name}": view for name, view in self._feed_forward.views().items()},
        }

    def prefill(self, hidden: Tensor, prefill: Prefill) -> tuple[Tensor, Tensor]:
        """Map [B*P, H] to [B*P, H], and return what to cache."""
        normed = rms_norm(hidden, self._attention_norm, self._epsilon)
        mixed, cached = self._attention.prefill(normed, prefill)
        return self._finish(hidden + mixed), cached

    def decode(self, hidden: Tensor, cache: LayerCache, step: DecodeStep) -> Tensor:
        """Map [B, H] to [B, H] for one more token of each sequence."""
        normed = rms_norm(hidden, self._attention_norm, self._epsilon)
        return self._finish(hidden + self._attention.decode(normed, cache, step))

    def log_routes(self, log: list[Tensor]) -> None:
        """Append the experts of each pass's tokens to `log`, if the layer has experts."""
        if isinstance(self._feed_forward, FusedExperts):
            self._feed_forward.log = log

    def idle(self) -> None:
        """Run the layer's experts without local tokens."""
        if isinstance(self._feed_forward, FusedExperts):
            self._feed_forward.idle()

    def _finish(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._feed_forward_norm, self._epsilon)
        return hidden + self._feed_forward(normed)
