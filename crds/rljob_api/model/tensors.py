"""List every tensor of a model by its Hugging Face name, with its shape and how ranks may share it.

Called by `layout`. `architecture` counts the same parameters by layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from rljob_api.model.architecture import ExpertSizes, LatentSizes, Shape
from rljob_api.model.vision import TOWER

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
SCORE, SCORE_BIAS = "score.weight", "score.bias"


class Cut(StrEnum):
    """How tensor parallelism shares a tensor among ranks."""

    WHOLE = "whole"
    """Every rank holds the full tensor."""
    VOCABULARY = "vocabulary"
    """Rows by token id; the first ranks have one more if the rows do not divide evenly."""
    QUERY_HEADS = "query heads"
    """Rows of complete heads."""
    KEY_HEADS = "key heads"
    """Rows of complete key or value heads; with more ranks than heads, several ranks hold the same head."""
    HEAD_COLUMNS = "head columns"
    """Columns of complete query heads."""
    ROWS = "rows"
    """Rows of the hidden layer of a feed-forward network."""
    COLUMNS = "columns"
    """Columns of the hidden layer of a feed-forward network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor. layer: from 0; None for the embedding, the last norm, the head and tensors of a vision
    tower. expert: from 0; None for tensors outside experts."""

    name: str
    shape: tuple[int, ...]
    cut: Cut = Cut.WHOLE
    layer: int | None = None
    expert: int | None = None

    @property
    def of_tower(self) -> bool:
        """Return whether the tensor belongs to a vision tower."""
        return self.name.startswith(TOWER)


def tower_tensors(shape: Shape) -> Iterator[TensorSpec]:
    """Yield the tensors of a trained vision tower. A rank holds either all of them or none."""
    if shape.trains_tower and shape.vision is not None:
        yield from (TensorSpec(name=name, shape=size) for name, size in shape.vision.tensors())


def tensors_of(shape: Shape) -> Iterator[TensorSpec]:
    """Yield all tensors layer by layer: the embedding first, those of a trained vision tower last. A tied
    head is the embedding and has no entry."""
    embedding, *last = tensors_outside_layers(shape)
    yield embedding
    for layer in range(shape.layers):
        yield from layer_tensors(shape, layer)
    yield from last
    yield from tower_tensors(shape)


def tensors_outside_layers(shape: Shape) -> Iterator[TensorSpec]:
    """Yield the embedding, the last norm, and the head unless it is tied."""
    vocabulary = (shape.vocab, shape.hidden)
    yield TensorSpec(name=EMBEDDING, shape=vocabulary, cut=Cut.VOCABULARY)
    yield TensorSpec(name=NORM, shape=(shape.hidden,))
    if shape.scores:
        yield TensorSpec(name=SCORE, shape=(1, shape.hidden))
        if shape.score_bias:
            yield TensorSpec(name=SCORE_BIAS, shape=(1,))
    elif not shape.tied:
        yield TensorSpec(name=HEAD, shape=vocabulary, cut=Cut.VOCABULARY)


def layer_tensors(
    shape: Shape, layer: int, *, experts: range | None = None
) -> Iterator[TensorSpec]:
    """Yield the tensors of one layer. layer: from 0. experts: only these experts, if the layer has any; None:
    all."""
    hidden = (shape.hidden,)
    for entry in (
        *_norms(hidden),
        *(_latent(shape, shape.latent) if shape.latent else _attention(shape)),
        *_feed_forward(shape, layer, experts),
    ):
        name, size, cut = entry[:3]
        expert = entry[3] if len(entry) > 3 else None
        yield TensorSpec(
            name=f"model.layers.{layer}.{name}", shape=size, cut=cut, layer=layer, expert=expert
        )


TensorEntry = tuple[str, tuple[int, ...], Cut] | tuple[str, tuple[int, ...], Cut, int]


def _norms(hidden: tuple[int]) -> Iterator[TensorEntry]:
    yield "input_layernorm.weight", hidden, Cut.WHOLE
    yield "post_attention_layernorm.weight", hidden, Cut.WHOLE


def _attention(shape: Shape) -> Iterator[TensorEntry]:
    hidden, head = shape.hidden, shape.head_dim
    queries, keys = shape.heads * head, shape.kv_heads * head
    for name, rows, cut in (
        ("q_proj", queries, Cut.QUERY_HEADS),
        ("k_proj", keys, Cut.KEY_HEADS),
        ("v_proj", keys, Cut.KEY_HEADS),
    ):
        yield f"self_attn.{name}.weight", (rows, hidden), cut
        if shape.qkv_bias:
            yield f"self_attn.{name}.bias", (rows,), cut
    yield "self_attn.o_proj.weight", (hidden, queries), Cut.HEAD_COLUMNS
    if shape.output_bias:
        yield "self_attn.o_proj.bias", (hidden,), Cut.WHOLE
    if shape.qk_norm:
        yield "self_attn.q_norm.weight", (head,), Cut.WHOLE
        yield "self_attn.k_norm.weight", (head,), Cut.WHOLE


def _latent(shape: Shape, latent: LatentSizes) -> Iterator[TensorEntry]:
    hidden, rank = shape.hidden, latent.query_rank
    queries = shape.heads * (latent.nope_dim + latent.rope_dim)
    values = shape.heads * latent.value_dim
    if rank is None:
        yield "self_attn.q_proj.weight", (queries, hidden), Cut.QUERY_HEADS
    else:
        yield "self_attn.q_a_proj.weight", (rank, hidden), Cut.WHOLE
        yield "self_attn.q_a_layernorm.weight", (rank,), Cut.WHOLE
        yield "self_attn.q_b_proj.weight", (queries, rank), Cut.QUERY_HEADS
        if shape.qkv_bias:
            yield "self_attn.q_a_proj.bias", (rank,), Cut.WHOLE
    joined = latent.kv_rank + latent.rope_dim
    yield "self_attn.kv_a_proj_with_mqa.weight", (joined, hidden), Cut.WHOLE
    if shape.qkv_bias:
        yield "self_attn.kv_a_proj_with_mqa.bias", (joined,), Cut.WHOLE
    yield "self_attn.kv_a_layernorm.weight", (latent.kv_rank,), Cut.WHOLE
    unfolded = shape.heads * latent.nope_dim + values
    yield "self_attn.kv_b_proj.weight", (unfolded, latent.kv_rank), Cut.QUERY_HEADS
    yield "self_attn.o_proj.weight", (hidden, values), Cut.HEAD_COLUMNS
    if shape.output_bias:
        yield "self_attn.o_proj.bias", (hidden,), Cut.WHOLE


def _feed_forward(shape: Shape, layer: int, local_experts: range | None) -> Iterator[TensorEntry]:
    experts = shape.experts
    if experts is None or not experts.in_layer(layer):
        yield from _gated("mlp", shape.hidden, shape.intermediate, with_bias=shape.mlp_bias)
        return
    yield from _sparse(
        shape, experts, range(experts.count) if local_experts is None else local_experts
    )


def _sparse(shape: Shape, experts: ExpertSizes, local_experts: range) -> Iterator[TensorEntry]:
    hidden = shape.hidden
    yield "mlp.gate.weight", (experts.count, hidden), Cut.WHOLE
    if experts.gate_bias:
        yield "mlp.gate.e_score_correction_bias", (experts.count,), Cut.WHOLE
    for expert in local_experts:
        for name, size, cut, *_ in _gated(f"mlp.experts.{expert}", hidden, experts.intermediate):
            yield name, size, cut, expert
    if inner := experts.shared_intermediate:
        yield from _gated("mlp.shared_experts", hidden, inner, with_bias=shape.mlp_bias)


def _gated(name: str, hidden: int, inner: int, *, with_bias: bool = False) -> Iterator[TensorEntry]:
    yield f"{name}.gate_proj.weight", (inner, hidden), Cut.ROWS
    yield f"{name}.up_proj.weight", (inner, hidden), Cut.ROWS
    yield f"{name}.down_proj.weight", (hidden, inner), Cut.COLUMNS
    if with_bias:
        yield f"{name}.gate_proj.bias", (inner,), Cut.ROWS
        yield f"{name}.up_proj.bias", (inner,), Cut.ROWS
        yield f"{name}.down_proj.bias", (hidden,), Cut.WHOLE
