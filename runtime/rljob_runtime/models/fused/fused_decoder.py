"""A decoder that generates, or a part of one: prompts at once, then one token a sequence at a time.

Query, key and value are one matrix, gate and up another; `hf_views` shows them under Hugging Face's
names. Called by the `torch` rollout engine; knows no ranks: what parts of a model tell each other are
the `Joins` of `part`.
"""

# B sequences, P longest prompt, H hidden, V vocabulary, N kept heads a token, W width of a kept head
# U tokens of a pass, M layers with experts, K experts of a token
# H alone is the model's, all else the part's

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
from rljob_runtime.models.fused.fused_weights import New, Weights
from rljob_runtime.models.fused.kept import Kept, KeptLayer, Reach
from rljob_runtime.models.fused.part import Joins, ModelPart
from rljob_runtime.models.fused.step import Prefill, Seen, Step, make_step
from rljob_runtime.models.routes import packed_dtype

Keep = Callable[[int, Tensor], None]
"""Takes a layer's number here, and what it keeps of prompts, [tensors, B, N, P, W]."""


class FusedDecoder:
    """Weights are uninitialised until they are copied into `hf_views`.

    new: makes the weights. max_length: of the longest sequence. keeps_routes: whether `routes` are asked for.
    Raises ConfigError where the model cannot have such.
    """

    def __init__(
        self,
        part: ModelPart,
        joins: Joins,
        new: New,
        *,
        max_length: int,
        keeps_routes: bool = False,
    ) -> None:
        a = self.sizes = part.sizes
        self._part, self._joins = part, joins
        a.check_length(max_length)
        self._ends = _new_ends(part, new)
        self._layers = [_Layer(part, index, joins, new) for index in part.layers]
        self.keeps_routes, self._log, self._tokens = keeps_routes, list[Tensor](), 0
        if keeps_routes:
            for layer in self._layers:
                layer.log_routes(self._log)
        cos, sin = cos_and_sin(a, torch.arange(max_length), new.dtype)
        self._rotation = cos.to(new.device), sin.to(new.device)

    def hf_views(self) -> dict[str, Weights]:
        """The weights as files name them, sharing memory; a tied head once."""
        views: dict[str, Weights] = dict(self._ends)
        for index, layer in zip(self._part.layers, self._layers, strict=True):
            for name, view in layer.views().items():
                views[f"model.layers.{index}.{name}"] = view
        return dict(split_experts(views.items(), first=self._part.experts.start))

    def prefill(
        self, tokens_BP: Tensor, lengths_B: Tensor, keep: Keep, seen: Seen | None = None
    ) -> Tensor:
        """Logits after each of these prompts, [B, V] float32; each layer tells `keep` what is kept of them.

        tokens_BP: padded on the right with any token; what is kept of padding is garbage. seen: of their
        pictures. Without the model's last layer there are no logits: [B, 0].
        """
        hidden = self._run(tokens_BP, keep, seen)
        rows, width = tokens_BP.shape
        last_B = torch.arange(rows, device=lengths_B.device) * width + lengths_B - 1
        return self._logits(hidden, last_B)

    def score(self, tokens_BP: Tensor) -> Tensor:
        """Logits after each token of these prompts, [B*P, V], otherwise as in `prefill`; nothing is kept."""
        return self._logits(self._run(tokens_BP, lambda layer, kept: None))

    def decode(self, tokens_B: Tensor, kept: Kept, reach: Reach) -> Tensor:
        """Logits after one more token of each sequence, as in `prefill`; what is kept of it is stored."""
        hidden = self._enter(tokens_B)
        at = make_step(self.sizes, reach, self._rotation, kept, hidden.dtype)
        for layer, kept_layer in zip(self._layers, kept.layers(), strict=True):
            hidden = layer.decode(hidden, kept_layer, at)
        return self._logits(hidden)

    def routes(self) -> Tensor:
        """The experts of the last pass's tokens in the layers here that have any, [U, M, K] on the host, of
        `packed_dtype`."""
        experts = self.sizes.experts
        assert self.keeps_routes and experts is not None, "nobody has noted who goes to which"
        if not self._log:
            return torch.empty(self._tokens, 0, experts.chosen, dtype=packed_dtype(experts))
        return torch.stack(self._log, 1).cpu()

    def idle(self) -> bool:
        """A pass without tokens, where the experts here are shared with parts that may have some; False
        once nobody has."""
        if not self._joins.begin(0):
            return False
        self._log.clear()
        for layer in self._layers:
            layer.idle()
        return True

    def _run(self, tokens_BP: Tensor, keep: Keep, seen: Seen | None = None) -> Tensor:
        """Hidden states behind the last layer here, [B*P, H]."""
        rows, width = tokens_BP.shape
        hidden = self._enter(tokens_BP.reshape(-1))
        pictured = None if seen is None else seen.pictured
        if seen is None:
            cos, sin = (x[:width].repeat(rows, 1) for x in self._rotation)
        else:
            cos, sin = cos_and_sin(self.sizes, seen.positions, hidden.dtype)
        if pictured is not None and self._part.first:
            hidden = pictured.enter(hidden)
        at = Prefill(rows=rows, width=width, cos=cos[:, None], sin=sin[:, None])
        for index, layer in enumerate(self._layers):
            hidden, kept = layer.prefill(hidden, at)
            keep(index, kept)
            if pictured is not None:
                hidden = pictured.follow(self._part.layers[index], hidden)
        return hidden

    def _enter(self, tokens_U: Tensor) -> Tensor:
        """Hidden states before the first layer here."""
        self._joins.begin(len(tokens_U))
        self._log.clear()
        self._tokens = len(tokens_U)
        if self._part.first:
            return self._joins.embed(tokens_U, self._ends[EMBEDDING])
        rotation = self._rotation[0]
        return self._joins.arrive(rotation.new_empty(len(tokens_U), self.sizes.hidden_size))

    def _logits(self, hidden: Tensor, rows_B: Tensor | None = None) -> Tensor:
        """Of these rows, or of all. Where further layers follow, they get the hidden states instead."""
        if not self._part.last:
            self._joins.hand_on(hidden)
            return hidden.new_empty(len(hidden if rows_B is None else rows_B), 0)
        if rows_B is not None:
            hidden = hidden.index_select(0, rows_B)
        normed = rms_norm(hidden, self._ends[NORM], self.sizes.norm_epsilon)
        return product(normed, self._ends[EMBEDDING if self.sizes.tied else HEAD]).float()


def _new_ends(part: ModelPart, new: New) -> dict[str, Tensor]:
    """What lies outside of the layers, by Hugging Face name."""
    a = part.sizes
    ends = {}
    if part.first or (part.last and a.tied):
        ends[EMBEDDING] = new(a.vocab_size, a.hidden_size)
    if part.last:
        ends[NORM] = new(a.hidden_size)
    if part.last and not a.tied:
        ends[HEAD] = new(a.vocab_size, a.hidden_size)
    return ends


class _Layer:
    """Attention and feed-forward, each behind a norm and a residual."""

    def __init__(self, part: ModelPart, index: int, joins: Joins, new: New) -> None:
        a = part.sizes
        self._attention = (
            FusedLatent(a, a.latent, joins, new) if a.latent else FusedHeads(a, joins, new)
        )
        self._feed_forward = make_feed_forward(part, index, joins, new)
        self._attention_norm, self._feed_forward_norm = new(a.hidden_size), new(a.hidden_size)
        self._epsilon = a.norm_epsilon

    def views(self) -> dict[str, Weights]:
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

    def decode(self, hidden: Tensor, kept: KeptLayer, at: Step) -> Tensor:
        """[B, H] -> [B, H]."""
        normed = rms_norm(hidden, self._attention_norm, self._epsilon)
        return self._finish(hidden + self._attention.decode(normed, kept, at))

    def log_routes(self, log: list[Tensor]) -> None:
        """Where the layer has experts, it notes there who goes to which."""
        if isinstance(self._feed_forward, FusedExperts):
            self._feed_forward.log = log

    def idle(self) -> None:
        """No tokens."""
        if isinstance(self._feed_forward, FusedExperts):
            self._feed_forward.idle()

    def _finish(self, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, self._feed_forward_norm, self._epsilon)
        return hidden + self._feed_forward(normed)
