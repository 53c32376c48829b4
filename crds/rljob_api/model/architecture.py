"""Read the shape of a model from its config.json: parameters of each layer, and how each can be cut.

Called by `memory`, `plan` and `shape_rules`. This only counts parameters; the runtime has its own reader,
which also handles positions and activations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rljob_api.model.config_sizes import size_in
from rljob_api.model.model_places import model_folder
from rljob_api.model.vision import (
    VISION,
    TowerSizes,
    language_part,
    read_tower,
    token_side,
    tower_attended,
    tower_merger,
    tower_outputs,
)
from rljob_api.spec.json_text import read_json
from rljob_api.spec.messages import show
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.workload import Model

DEEPSEEK = ("deepseek_v2", "deepseek_v3")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", *DEEPSEEK, *VISION)
BIASED = ("qwen2", "qwen2_5_vl")
"""Families with biases on queries, keys and values, and never on the attention output."""
FIRST_SPARSE_LAYERS = {"deepseek_v2": 0, "deepseek_v3": 3}
SEQUENCE_SCORER, TOKEN_SCORER = "ForSequenceClassification", "ForTokenClassification"
BYTE_EXPERTS = 256
"""Expert numbers fit into 8 bits up to this many experts."""
HEAD_DIMS = {
    "qwen3": 128,
    "qwen3_vl": 128,
}  # where config.json has none and heads do not share out the hidden size


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Numbers of parameters. tensor: cut by tensor parallelism. replicated: repeated on every rank. experts:
    cut by expert parallelism."""

    tensor: int = 0
    replicated: int = 0
    experts: int = 0

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(
            tensor=self.tensor + other.tensor,
            replicated=self.replicated + other.replicated,
            experts=self.experts + other.experts,
        )

    @property
    def total(self) -> int:
        """Return the number of all parameters."""
        return self.tensor + self.replicated + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """Sizes of a mixture of experts. chosen: experts per token. first_layer: layers before it are dense.
    every: one layer in this many is sparse."""

    count: int
    intermediate: int
    chosen: int = 1
    shared_intermediate: int = 0
    first_layer: int = 0
    every: int = 1
    dense_layers: tuple[int, ...] = ()
    gate_bias: bool = False

    def in_layer(self, layer: int) -> bool:
        """Return whether the layer has experts."""
        sparse = layer >= self.first_layer and (layer + 1) % self.every == 0
        return sparse and layer not in self.dense_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Ranks and head sizes of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1)."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder. scores: its head gives one number per token instead of vocabulary logits;
    score_bias: that head has a bias.

    tower: parameters of the model's vision tower. vision: sizes of that tower. trains_tower: the tower is
    trained with the decoder, and its tensors are among the model's. token_side: pixels along the side of one
    picture token. tower_outputs: vectors that the tower returns for each picture token. tower_merger,
    tower_attended: as computed in `vision`.
    """

    family: str
    vocab: int
    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    experts: ExpertSizes | None = None
    latent: LatentSizes | None = None
    scores: bool = False
    score_bias: bool = False
    tower: int = 0
    vision: TowerSizes | None = None
    trains_tower: bool = False
    token_side: int = 0
    tower_outputs: int = 1
    tower_merger: int = 0
    tower_attended: int = 0

    def scorer(self) -> "Shape":
        """Return this shape with a head of one number per token and a frozen tower; unchanged if it has such
        a head."""
        return self if self.scores else replace(self, tied=False, scores=True, trains_tower=False)

    def shown(self, model: Model) -> "Shape":
        """Return this shape as the job's model uses it, with or without a trained tower."""
        return replace(self, trains_tower=model.vision == "trained")

    def embedding(self) -> Parameters:
        """Return the parameters of the token embedding."""
        return Parameters(tensor=self.vocab * self.hidden)

    def head(self) -> Parameters:
        """Return the parameters of the last norm and the output projection. A tied projection counts as the
        embedding."""
        if self.scores:
            return Parameters(replicated=2 * self.hidden + self.score_bias)
        return Parameters(
            replicated=self.hidden, tensor=0 if self.tied else self.vocab * self.hidden
        )

    def layer(self, index: int) -> Parameters:
        """Return the parameters of one layer. index: from 0."""
        attention = self._latent(self.latent) if self.latent else self._attention()
        norms = Parameters(replicated=2 * self.hidden)
        if self.experts and self.experts.in_layer(index):
            return attention + norms + self._sparse(self.experts)
        return attention + norms + self._gated(self.intermediate)

    def total(self) -> Parameters:
        """Return the parameters of the full model."""
        return _total(self)

    @property
    def route_bytes(self) -> int:
        """Return the bytes that store the expert numbers of one token in all layers; 0 without experts."""
        if self.experts is None:
            return 0
        sparse = sum(self.experts.in_layer(layer) for layer in range(self.layers))
        return sparse * self.experts.chosen * (1 if self.experts.count <= BYTE_EXPERTS else 2)

    def kv_items(self, tensor: int) -> int:
        """Return the KV cache items per token, layer and device. Heads are repeated if there are fewer heads
        than ranks."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * max(1, self.kv_heads // tensor) * self.head_dim

    def _attention(self) -> Parameters:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = queries + 2 * keys if self.qkv_bias else 0
        return Parameters(
            tensor=self.hidden * (2 * queries + 2 * keys) + bias,
            replicated=(2 * self.head_dim if self.qk_norm else 0)
            + (self.hidden if self.output_bias else 0),
        )

    def _latent(self, latent: LatentSizes) -> Parameters:
        queries = self.heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        cut = queries * (rank or self.hidden) + self.heads * latent.value_dim * self.hidden
        cut += latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        replicated = self.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        replicated += rank * (self.hidden + 1) if rank else 0
        if self.qkv_bias:
            replicated += latent.kv_rank + latent.rope_dim + (rank or 0)
        replicated += self.hidden if self.output_bias else 0
        return Parameters(tensor=cut, replicated=replicated)

    def _gated(self, inner: int) -> Parameters:
        """Return the parameters of a gated feed-forward of this width."""
        return Parameters(
            tensor=3 * self.hidden * inner + (2 * inner if self.mlp_bias else 0),
            replicated=self.hidden if self.mlp_bias and inner else 0,
        )

    def _sparse(self, experts: ExpertSizes) -> Parameters:
        routed = Parameters(
            experts=3 * self.hidden * experts.intermediate * experts.count,
            replicated=self.hidden * experts.count + (experts.count if experts.gate_bias else 0),
        )
        return routed + self._gated(experts.shared_intermediate)


@lru_cache(maxsize=64)
def _total(shape: Shape) -> Parameters:
    layers = (shape.layer(index) for index in range(shape.layers))
    return sum(layers, shape.embedding() + shape.head())


BUILTINS = {
    "tiny": Shape(
        family="qwen3", vocab=259, hidden=128, layers=4, intermediate=384, heads=4, kv_heads=4,
        head_dim=32, tied=True, qk_norm=True,
    ),
    "tiny-vl": Shape(
        family="qwen2_5_vl", vocab=263, hidden=96, layers=3, intermediate=256, heads=4, kv_heads=4,
        head_dim=24, tied=True, qkv_bias=True, tower=249_120, token_side=28,
        tower_merger=90_464, tower_attended=128,
        vision=TowerSizes(gated=True, depth=2, hidden=64, inner=128, patch=1176, merged=4, out=96),
    ),
    "smollm2-135m-instruct": Shape(
        family="llama", vocab=49152, hidden=576, layers=30, intermediate=1536, heads=9, kv_heads=3,
        head_dim=64, tied=True,
    ),
}  # fmt: skip


def find_shape(model: Model, *, base_dir: Path) -> Shape | None:
    """Return the shape of the job's model, or None for a family without a known shape.

    base_dir: folder of the job's file. Raises InvalidJob if config.json cannot be read.
    """
    if model.builtin is not None:
        return BUILTINS[model.builtin].shown(model)
    directory = base_dir / (model.path or "")
    file = (model_folder(directory) or directory) / "config.json"
    try:
        config = read_json(file)
    except FileNotFoundError:
        message = (
            f"{file} does not exist; name a Hugging Face directory, relative to the job's file"
        )
        raise InvalidJob([Problem("spec.model.path", message)]) from None
    except (OSError, ValueError) as error:
        message = f"{file} cannot be read: {error}; copy the model again"
        raise InvalidJob([Problem("spec.model.path", message)]) from error
    shape = read_shape(config, name=str(file))
    return shape.shown(model) if shape is not None else None


def read_shape(config: Mapping[str, Any], *, name: str) -> Shape | None:
    """Return the shape described by a Hugging Face configuration, or None for a family without a known shape.

    name: name of the file. Raises InvalidJob if a size is missing or out of range.
    """
    try:
        if not isinstance(config, dict):
            raise ValueError(f"it is {show(config)}, no mapping of keys")
        family = config.get("model_type")
        if not isinstance(family, str):
            raise ValueError(f"model_type is {show(family)}; must be text")
        return _shape(language_part(config), family) if family in FAMILIES else None
    except ValueError as error:
        message = f"{name} is no model configuration: {error}"
        raise InvalidJob([Problem("spec.model.path", message)]) from error


def _shape(config: Mapping[str, Any], family: str) -> Shape:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    scores = name.endswith((SEQUENCE_SCORER, TOKEN_SCORER))
    heads, hidden = size_in(config, "num_attention_heads"), size_in(config, "hidden_size")
    bias, tower = bool(config.get("attention_bias", False)), read_tower(config)
    return Shape(
        family=family,
        vocab=size_in(config, "vocab_size"),
        hidden=hidden,
        layers=size_in(config, "num_hidden_layers"),
        intermediate=size_in(config, "intermediate_size"),
        heads=heads,
        kv_heads=size_in(config, "num_key_value_heads", heads),
        head_dim=size_in(config, "head_dim", HEAD_DIMS.get(family) or hidden // heads),
        tied=bool(config.get("tie_word_embeddings", False)) and not scores,
        qkv_bias=bias or family in BIASED,
        output_bias=bias and family not in BIASED,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe", "qwen3_vl"),
        experts=_experts(config, family),
        latent=_latent(config) if family in DEEPSEEK else None,
        scores=scores,
        score_bias=name.endswith(TOKEN_SCORER),
        tower=tower.parameters if tower else 0,
        vision=tower,
        token_side=token_side(config),
        tower_outputs=tower_outputs(config),
        tower_merger=tower_merger(config),
        tower_attended=tower_attended(config),
    )


def _experts(config: Mapping[str, Any], family: str) -> ExpertSizes | None:
    if family == "qwen3_moe":
        dense = config.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
            raise ValueError(f"mlp_only_layers is {show(dense)}; must be a list of whole numbers")
        return ExpertSizes(
            count=size_in(
                config, "num_experts" if config.get("num_experts") else "num_local_experts"
            ),
            intermediate=size_in(config, "moe_intermediate_size"),
            chosen=size_in(config, "num_experts_per_tok"),
            every=size_in(config, "decoder_sparse_step", 1),
            dense_layers=tuple(dense),
        )
    if family in DEEPSEEK:
        size, first = size_in(config, "moe_intermediate_size"), FIRST_SPARSE_LAYERS[family]
        return ExpertSizes(
            count=size_in(config, "n_routed_experts"),
            intermediate=size,
            chosen=size_in(config, "num_experts_per_tok"),
            shared_intermediate=size * size_in(config, "n_shared_experts", least=0),
            first_layer=size_in(config, "first_k_dense_replace", first, least=0),
            gate_bias=family == "deepseek_v3",
        )
    return None


def _latent(config: Mapping[str, Any]) -> LatentSizes:
    return LatentSizes(
        query_rank=size_in(config, "q_lora_rank", 0, least=0) or None,
        kv_rank=size_in(config, "kv_lora_rank"),
        nope_dim=size_in(config, "qk_nope_head_dim"),
        rope_dim=size_in(config, "qk_rope_head_dim"),
        value_dim=size_in(config, "v_head_dim"),
    )
