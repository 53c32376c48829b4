"""The decoder of all families for training on groups of samples, assembled from `blocks`.

Parameter names are Hugging Face's. A group's prompt is computed once, not once per sample; rollout has its
own version of the same model (`fused`). This code is for one device and has no ranks: `parallelize` replaces
`ends` and the blocks' `linears`, `attend` and `run` where ranks share the model.
"""

# U packed tokens, H hidden, V vocabulary, T response tokens

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from rljob_api.model.adapters import is_adapter
from rljob_api.model.vision import TOWER
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.attention import Attention
from rljob_runtime.models.blocks.gated_mlp import GatedMlp
from rljob_runtime.models.blocks.latent_attention import LatentAttention
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.moe import MixtureOfExperts
from rljob_runtime.models.blocks.norm import Norm
from rljob_runtime.models.blocks.rotary import cos_and_sin
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.ends import Ends, WholeEnds
from rljob_runtime.models.expert_names import split_experts
from rljob_runtime.models.packing import Packing, pack
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.models.recompute import checkpointed_with_counter
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.samples.sample import SampleBatch


class Decoder(nn.Module):
    """A `PolicyModel`; with a scalar head, a critic or a reward model with the same methods.

    Weights are uninitialised until `initialize`, `load_state_dict`, or a copy into `named_hf_parameters`.
    first_expert: number of the first local expert. text_ids: ids from this one on have no text, and are never
    drawn; None: all ids have text. tower: vision tower of a decoder that gets pictures (`show`).
    """

    ends: Ends
    tower: VisionTower | None

    def __init__(self, architecture: Architecture, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.architecture = architecture
        self.ends, self.first_expert, self.tower = WholeEnds(), 0, None
        self.text_ids: int | None = None
        self.model = Backbone(architecture, dtype)
        if architecture.scores:
            self.score = Matrix(
                1, architecture.hidden_size, dtype, with_bias=architecture.score_bias
            )
        elif not architecture.tied:
            self.lm_head = Matrix(architecture.vocab_size, architecture.hidden_size, dtype)

    def show(self, tower: VisionTower) -> None:
        """Attach the vision tower that computes the samples' pictures; a trained one becomes part of the
        decoder.

        Ranks that share the decoder attach the full tower to each shard, after the decoder is split.
        """
        self.tower = tower
        if tower.trained:
            self.visual = tower.module

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return log-probs of the batch's response tokens, float32 [T], under softmax(logits / temperature).

        Raises AssertionError for a prompt without tokens, ConfigError for a sequence that is longer than the
        model's positions.
        """
        experts = self.architecture.experts
        if batch.num_tokens == 0:
            none_T, load = torch.zeros(0), RouterLoad(experts) if experts else None
            return TokenLogprobs(logprobs_T=none_T, entropy_T=none_T, router_load=load)
        return self.compute(batch, temperature=temperature, with_entropy=with_entropy)

    def compute(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool
    ) -> TokenLogprobs:
        """Return the log-probs of a batch that has at least one token; see `logprobs`."""
        packing, load = self.pack(batch)
        hidden_UH = self.model(self.ends.share(packing), load, self.ends)
        token_logprobs = self.read(
            hidden_UH, packing, temperature=temperature, with_entropy=with_entropy
        )
        return replace(token_logprobs, router_load=load)

    def pack(
        self, batch: SampleBatch, layers: range | None = None
    ) -> tuple[Packing, RouterLoad | None]:
        """Return the inputs of layers other than hidden states: the packing and an empty router load.

        batch: with at least one token. layers: those that will run; None for all.
        """
        experts, vision = self.architecture.experts, self.architecture.vision
        device = next(self.parameters()).device
        packing = pack(batch, device=device, vision=vision, experts=experts)
        self.architecture.check_length(packing.longest)
        if packing.pictured_P is not None and vision is not None:
            first = layers.start if layers else 0
            if first == 0 or first < vision.added:
                assert self.tower is not None, (
                    "a decoder without its vision tower is shown pictures"
                )
                pictured = self.tower.see(batch.all_pictures, packing.pictured_P)
                packing = replace(packing, pictured=pictured)
        return packing, self.ends.router_load(experts, packing) if experts else None

    def read(
        self, hidden_UH: Tensor, packing: Packing, *, temperature: float, with_entropy: bool
    ) -> TokenLogprobs:
        """Return log-probs, or a scalar head's values, from hidden states after the last norm."""
        if self.architecture.scores:
            values_T = self.ends.values(hidden_UH, self.score, packing)
            no_entropy_T = torch.zeros_like(values_T) if with_entropy else None
            return TokenLogprobs(logprobs_T=values_T, entropy_T=no_entropy_T)
        tied = self.architecture.tied
        weight_VH = self.model.embed_tokens.weight if tied else self.lm_head.weight
        return self.ends.logprobs(
            hidden_UH,
            weight_VH,
            packing,
            temperature=temperature,
            with_entropy=with_entropy,
            text_ids=self.text_ids,
        )

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights under their names in files, experts one by one; a tied head is the embedding's.

        A matrix with an adapter yields only its frozen weight; a vision tower is included only if it is
        trained.
        """
        base = (named for named in self.named_parameters() if not is_adapter(named[0]))
        stored = (named for named in self.named_buffers() if not named[0].startswith(TOWER))
        weights = chain(base, stored)
        yield from split_experts(weights, first=self.first_expert)

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the parameters that are not frozen; all experts of a layer are two parameters."""
        yield from (named for named in self.named_parameters() if named[1].requires_grad)

    def recompute_layers(self) -> None:
        """Keep only each layer's input, [U, H], for the backward pass."""
        for layer in self.model.layers:
            if isinstance(layer, Layer):
                layer.recompute = True

    def initialize(self, seed: int, *, std: float = 0.02) -> None:
        """Draw all matrices from N(0, std²) with this seed; norms are 1 and biases 0."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, weight in chain(self.named_parameters(), self.named_buffers()):
                if "norm" in name:
                    weight.fill_(1.0)
                elif name.endswith("bias"):
                    weight.zero_()
                else:
                    drawn = torch.empty(weight.shape).normal_(0.0, std, generator=generator)
                    weight.copy_(drawn)


class Backbone(nn.Module):
    """The embedding, the layers and the final norm."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        self.architecture = architecture
        hidden = architecture.hidden_size
        self.embed_tokens = Matrix(architecture.vocab_size, hidden, dtype)
        self.layers = nn.ModuleList(
            Layer(architecture, index, dtype) for index in range(architecture.num_layers)
        )
        self.norm = Norm(hidden, architecture.norm_epsilon, dtype)

    def forward(self, packing: Packing, load: RouterLoad | None, ends: Ends) -> Tensor:
        """Return hidden states of the packed tokens, [U, H]. load: filled by layers with experts."""
        hidden_UH = self.embed(packing, ends)
        hidden_UH = self.run_layers(range(len(self.layers)), hidden_UH, packing, load)
        normed_UH: Tensor = self.norm(hidden_UH)
        return normed_UH

    def embed(self, packing: Packing, ends: Ends) -> Tensor:
        """Return the input of the first layer, [U, H]. packing: returned by the ends' `share`."""
        hidden_UH = ends.embed(packing, self.embed_tokens.weight)
        return hidden_UH if packing.pictured is None else packing.pictured.enter(hidden_UH)

    def run_layers(
        self, layers: range, hidden_UH: Tensor, packing: Packing, load: RouterLoad | None
    ) -> Tensor:
        """Run some of the layers in order, [U, H] → [U, H]."""
        cos, sin = cos_and_sin(self.architecture, packing.positions_U, hidden_UH.dtype)
        rotation = cos[:, None], sin[:, None]
        for index in layers:
            hidden_UH = self.layers[index](hidden_UH, packing, rotation, load)
            if packing.pictured is not None:
                hidden_UH = packing.pictured.follow(index, hidden_UH)
        return hidden_UH


class Layer(nn.Module):
    """Attention and feed-forward, each with a norm before it and a residual.

    recompute: keep only the input for the backward pass. row: the layer's number among those with experts.
    """

    recompute: bool

    def __init__(self, architecture: Architecture, index: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.recompute = False
        hidden, epsilon = architecture.hidden_size, architecture.norm_epsilon
        self.self_attn = _attention(architecture, dtype)
        self.mlp = _feed_forward(architecture, index, dtype)
        sparse = architecture.experts_in(index)
        self.row = sparse.layers.index(index) if sparse else None
        self.input_layernorm = Norm(hidden, epsilon, dtype)
        self.post_attention_layernorm = Norm(hidden, epsilon, dtype)

    def forward(
        self,
        hidden_UH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        """Map [U, H] to [U, H]."""
        if not self.recompute:
            return self._run(hidden_UH, packing, rotation, load)
        return checkpointed_with_counter(self._run, hidden_UH, packing, rotation, counter=load)

    def _run(
        self,
        hidden_UH: Tensor,
        packing: Packing,
        rotation: tuple[Tensor, Tensor],
        load: RouterLoad | None,
    ) -> Tensor:
        hidden_UH = hidden_UH + self.self_attn(self.input_layernorm(hidden_UH), packing, rotation)
        normed_UH = self.post_attention_layernorm(hidden_UH)
        if self.row is None:
            output_UH: Tensor = self.mlp(normed_UH)
        else:
            routes_UMK = packing.routes_UMK
            replayed_UK = None if routes_UMK is None else routes_UMK[:, self.row]
            output_UH = self.mlp(normed_UH, load, replayed_UK)
        return hidden_UH + output_UH


def _attention(architecture: Architecture, dtype: torch.dtype) -> Attention | LatentAttention:
    if architecture.latent is not None:
        return LatentAttention(architecture, architecture.latent, dtype)
    return Attention(architecture, dtype)


def _feed_forward(
    architecture: Architecture, index: int, dtype: torch.dtype
) -> GatedMlp | MixtureOfExperts:
    a, experts = architecture, architecture.experts_in(index)
    if experts is not None:
        return MixtureOfExperts(experts, a.hidden_size, dtype, with_bias=a.mlp_bias)
    return GatedMlp(a.hidden_size, a.intermediate_size, dtype, with_bias=a.mlp_bias)
