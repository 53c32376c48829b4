"""The shape of a model from its config.json: parameters of each layer, and how each can be cut.

Called by `memory`, `plan` and `shape_rules`. Counts only; the runtime has its own reader that also
knows positions and activations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rljob_api.model.model_places import model_folder
from rljob_api.spec.json_text import read_json
from rljob_api.spec.messages import show
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.workload import Model

DEEPSEEK = ("deepseek_v2", "deepseek_v3")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", *DEEPSEEK)
FIRST_SPARSE_LAYERS = {"deepseek_v2": 0, "deepseek_v3": 3}
MOST_SIZE = 2**31 - 1
MOST = {"num_hidden_layers": 1024} | dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts"), 4096
)
"""Of what is counted one by one, by its key in config.json: no model has more, a spoiled file may."""
SEQUENCE_SCORER, TOKEN_SCORER = "ForSequenceClassification", "ForTokenClassification"
HEAD_DIMS = {"qwen3": 128}  # where config.json has none and heads do not share out the hidden size


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Numbers of parameters. tensor: tensor parallelism cuts them. whole: every rank repeats them.
    experts: expert parallelism cuts them."""

    tensor: int = 0
    whole: int = 0
    experts: int = 0

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(
            tensor=self.tensor + other.tensor,
            whole=self.whole + other.whole,
            experts=self.experts + other.experts,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.tensor + self.whole + self.experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Mixture of experts. chosen: those of a token. first_layer: layers before it are dense. every: one in
    so many is sparse."""

    count: int
    intermediate: int
    chosen: int = 1
    shared_intermediate: int = 0
    first_layer: int = 0
    every: int = 1
    dense_layers: tuple[int, ...] = ()
    gate_bias: bool = False

    def in_layer(self, layer: int) -> bool:
        """Whether the layer has experts."""
        sparse = layer >= self.first_layer and (layer + 1) % self.every == 0
        return sparse and layer not in self.dense_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1). Ranks and head sizes."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a decoder. scores: its head is one number a token, with a bias where score_bias is set, in
    place of the vocabulary's logits."""

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
    experts: Experts | None = None
    latent: Latent | None = None
    scores: bool = False
    score_bias: bool = False

    def scorer(self) -> "Shape":
        """The same with a head of one number a token, where it has another."""
        return self if self.scores else replace(self, tied=False, scores=True)

    def embedding(self) -> Parameters:
        """Token embedding."""
        return Parameters(tensor=self.vocab * self.hidden)

    def head(self) -> Parameters:
        """Last norm and output projection, without the projection where it is the embedding."""
        if self.scores:
            return Parameters(whole=2 * self.hidden + self.score_bias)
        return Parameters(whole=self.hidden, tensor=0 if self.tied else self.vocab * self.hidden)

    def layer(self, index: int) -> Parameters:
        """One layer. index: from 0."""
        attention = self._latent(self.latent) if self.latent else self._attention()
        norms = Parameters(whole=2 * self.hidden)
        if self.experts and self.experts.in_layer(index):
            return attention + norms + self._sparse(self.experts)
        return attention + norms + self._gated(self.intermediate)

    def total(self) -> Parameters:
        """The whole model."""
        return _total(self)

    def kv_items(self, tensor: int) -> int:
        """Items of the KV cache a token, layer and device; heads are repeated where they are few."""
        if self.latent:
            return self.latent.kv_rank + self.latent.rope_dim
        return 2 * max(1, self.kv_heads // tensor) * self.head_dim

    def _attention(self) -> Parameters:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = queries + 2 * keys if self.qkv_bias else 0
        return Parameters(
            tensor=self.hidden * (2 * queries + 2 * keys) + bias,
            whole=(2 * self.head_dim if self.qk_norm else 0)
            + (self.hidden if self.output_bias else 0),
        )

    def _latent(self, latent: Latent) -> Parameters:
        queries = self.heads * (latent.nope_dim + latent.rope_dim)
        rank = latent.query_rank
        cut = queries * (rank or self.hidden) + self.heads * latent.value_dim * self.hidden
        cut += latent.kv_rank * self.heads * (latent.nope_dim + latent.value_dim)
        whole = self.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank
        whole += rank * (self.hidden + 1) if rank else 0
        if self.qkv_bias:
            whole += latent.kv_rank + latent.rope_dim + (rank or 0)
        whole += self.hidden if self.output_bias else 0
        return Parameters(tensor=cut, whole=whole)

    def _gated(self, inner: int) -> Parameters:
        """A gated feed-forward of this width."""
        return Parameters(
            tensor=3 * self.hidden * inner + (2 * inner if self.mlp_bias else 0),
            whole=self.hidden if self.mlp_bias and inner else 0,
        )

    def _sparse(self, experts: Experts) -> Parameters:
        routed = Parameters(
            experts=3 * self.hidden * experts.intermediate * experts.count,
            whole=self.hidden * experts.count + (experts.count if experts.gate_bias else 0),
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
    "smollm2-135m-instruct": Shape(
        family="llama", vocab=49152, hidden=576, layers=30, intermediate=1536, heads=9, kv_heads=3,
        head_dim=64, tied=True,
    ),
}  # fmt: skip


def find_shape(model: Model, *, base_dir: Path) -> Shape | None:
    """The shape of the job's model; None for a family that has no known shape.

    base_dir: folder of the job's file. Raises InvalidJob when config.json cannot be read.
    """
    if model.builtin is not None:
        return BUILTINS[model.builtin]
    place = base_dir / (model.path or "")
    file = (model_folder(place) or place) / "config.json"
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
    return read_shape(config, name=str(file))


def read_shape(config: Mapping[str, Any], *, name: str) -> Shape | None:
    """The shape in a Hugging Face configuration; None for a family that has no known shape.

    name: the file's. Raises InvalidJob when a size is missing, or none that a model has.
    """
    try:
        if not isinstance(config, dict):
            raise ValueError(f"it is {show(config)}, no mapping of keys")
        family = config.get("model_type")
        if not isinstance(family, str):
            raise ValueError(f"model_type is {show(family)}; must be text")
        return _shape(config, family) if family in FAMILIES else None
    except ValueError as error:
        message = f"{name} is no model configuration: {error}"
        raise InvalidJob([Problem("spec.model.path", message)]) from error


def most_of(key: str) -> int:
    """The largest value that a size of a config.json may have."""
    return MOST.get(key, MOST_SIZE)


def _size(
    config: Mapping[str, Any], key: str, default: int | None = None, *, least: int = 1
) -> int:
    value, most = config.get(key), most_of(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        found = "is missing" if value is None else f"is {show(value)}"
        raise ValueError(f"{key} {found}; must be a whole number from {least} to {most}")
    return value


def _shape(config: Mapping[str, Any], family: str) -> Shape:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    scores = name.endswith((SEQUENCE_SCORER, TOKEN_SCORER))
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    bias = bool(config.get("attention_bias", False))
    return Shape(
        family=family,
        vocab=_size(config, "vocab_size"),
        hidden=hidden,
        layers=_size(config, "num_hidden_layers"),
        intermediate=_size(config, "intermediate_size"),
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", heads),
        head_dim=_size(config, "head_dim", HEAD_DIMS.get(family) or hidden // heads),
        tied=bool(config.get("tie_word_embeddings", False)) and not scores,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family in ("qwen3", "qwen3_moe"),
        experts=_experts(config, family),
        latent=_latent(config) if family in DEEPSEEK else None,
        scores=scores,
        score_bias=name.endswith(TOKEN_SCORER),
    )


def _experts(config: Mapping[str, Any], family: str) -> Experts | None:
    if family == "qwen3_moe":
        dense = config.get("mlp_only_layers") or []
        if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
            raise ValueError(f"mlp_only_layers is {show(dense)}; must be a list of whole numbers")
        return Experts(
            count=_size(
                config, "num_experts" if config.get("num_experts") else "num_local_experts"
            ),
            intermediate=_size(config, "moe_intermediate_size"),
            chosen=_size(config, "num_experts_per_tok"),
            every=_size(config, "decoder_sparse_step", 1),
            dense_layers=tuple(dense),
        )
    if family in DEEPSEEK:
        size, first = _size(config, "moe_intermediate_size"), FIRST_SPARSE_LAYERS[family]
        return Experts(
            count=_size(config, "n_routed_experts"),
            intermediate=size,
            chosen=_size(config, "num_experts_per_tok"),
            shared_intermediate=size * _size(config, "n_shared_experts", least=0),
            first_layer=_size(config, "first_k_dense_replace", first, least=0),
            gate_bias=family == "deepseek_v3",
        )
    return None


def _latent(config: Mapping[str, Any]) -> Latent:
    return Latent(
        query_rank=_size(config, "q_lora_rank", 0, least=0) or None,
        kv_rank=_size(config, "kv_lora_rank"),
        nope_dim=_size(config, "qk_nope_head_dim"),
        rope_dim=_size(config, "qk_rope_head_dim"),
        value_dim=_size(config, "v_head_dim"),
    )
