"""The architecture of a decoder: its sizes and switches, whatever the model's family.

`families` builds an `Architecture` from a Hugging Face config.json; the decoders and the rollout engine read
it.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from rljob_api.model.architecture import SEQUENCE_SCORER
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.rope import Rope

CAUSAL, CONDITIONAL = "ForCausalLM", "ForConditionalGeneration"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentArchitecture:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1).

    Queries and keys have nope_dim values without position and rope_dim values that are rotated; all heads
    share the rotated key. query_rank: None if queries are not compressed. interleaved: whether rotated pairs
    are neighbours, not halves. score_factor: multiplies the scores, in addition to 1 / sqrt(nope_dim +
    rope_dim).
    """

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool = True
    score_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeArchitecture:
    """Mixture of experts in the feed-forward of `layers`; no token is ever dropped.

    chosen: experts per token, out of the best chosen_groups of `groups`. scores: function of the logits.
    group_score: best score of a group, or the sum of its two best. normalized: the weights of a token's
    experts add up to 1, before `scale`. correction_bias: each expert has a stored value that is added to its
    score for the choice alone (DeepSeek-V3, arXiv:2412.19437, §2.1.2). shared_intermediate: width of the
    expert that all tokens use, 0 for none. balance_coefficient: weight of the load-balancing loss in
    training.
    """

    count: int
    chosen: int
    intermediate_size: int
    layers: tuple[int, ...]
    shared_intermediate: int = 0
    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalized: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_score: Literal["best", "two best"] = "best"
    correction_bias: bool = False
    balance_coefficient: float = 0.0

    def __post_init__(self) -> None:
        if self.count % self.groups or self.chosen_groups > self.groups:
            raise ConfigError(
                f"the best {self.chosen_groups} of n_group={self.groups} groups cannot be taken from "
                f"{self.count} experts (config.json)"
            )
        if self.chosen > self.count // self.groups * self.chosen_groups:
            raise ConfigError(
                f"num_experts_per_tok={self.chosen} is more than the experts of the "
                f"{self.chosen_groups} best groups of {self.count // self.groups} (config.json)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """What a decoder needs to know about its vision tower.

    picture_token: id that the tower's output replaces, once for each of its rows. merged: patches along each
    side of a picture that become one row. added: number of first layers whose output gets another tower
    output added at these tokens (DeepStack, arXiv:2406.04334).
    """

    picture_token: int
    merged: int
    added: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and switches of a decoder.

    latent: None for attention with separate keys and values per head. If it is set, num_kv_heads equals
    num_heads, and head_dim is the width of queries and keys. experts: None for a dense model. scores: the
    head returns one number per token in place of the vocabulary's logits, with a bias if score_bias is set.
    vision: None for a text-only model.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope: Rope
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_length: int
    latent: LatentArchitecture | None = None
    experts: MoeArchitecture | None = None
    scores: bool = False
    score_bias: bool = False
    vision: Vision | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_kv_heads} does not divide "
                f"num_attention_heads={self.num_heads} (config.json)"
            )

    def scorer(self) -> "Architecture":
        """Return the same architecture with a head of one number per token."""
        if self.scores:
            return self
        name = self.name.removesuffix(CAUSAL).removesuffix(CONDITIONAL) + SEQUENCE_SCORER
        return replace(self, name=name, tied=False, scores=True)

    @property
    def repeats(self) -> int:
        """Return the number of query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rotated_dim(self) -> int:
        """Return the number of values of a head that are rotated."""
        return self.latent.rope_dim if self.latent else self.head_dim

    @property
    def score_scale(self) -> float:
        """Return the factor that a query's product with a key is multiplied by."""
        plain = 1 / math.sqrt(self.head_dim)
        return plain * self.latent.score_factor if self.latent else plain

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Return what a layer caches of a token: the number of tensors, heads of each, and width of each.

        These are keys and values, or the latent that both are computed from, followed by the rotated key.
        """
        if self.latent:
            return 1, 1, self.latent.kv_rank + self.latent.rope_dim
        return 2, self.num_kv_heads, self.head_dim

    def experts_in(self, layer: int) -> MoeArchitecture | None:
        """Return the experts of a layer, or None if the layer is dense."""
        return self.experts if self.experts and layer in self.experts.layers else None

    def check_length(self, length: int) -> None:
        """Raise ConfigError if this model has no positions for a sequence of this length."""
        if self.rope.kind == "dynamic" and length > self.max_length:
            raise ConfigError(
                f"a sequence of {length} tokens is longer than max_position_embeddings="
                f"{self.max_length}, and rope_type=dynamic turns longer ones by a speed that depends "
                "on their length, which is not computed here; use shorter prompts and responses, or "
                "rope_type yarn"
            )
