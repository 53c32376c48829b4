"""Weights of dense decoders between Hugging Face's names and those of `model`, whole or a tensor rank's.

Megatron keeps queries, keys and values in one matrix, group by group: the query heads of a key head,
then the key head, then its value head. Gate and up projection follow each other in another one. Pure;
called by `engine`.
"""

# H hidden, D width of a head, G key heads of the rank, R query heads of each

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture

ENDS = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "decoder.final_layernorm.weight",
    "lm_head.weight": "head",
}
LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
"""What both have one tensor for."""


def is_cut(name: str) -> bool:
    """Whether tensor ranks share a parameter; of others each has all."""
    return name in ("embedding", "head") or ".linear_" in name


def to_megatron(
    weights: Mapping[str, Tensor], architecture: Architecture
) -> Iterator[tuple[str, Tensor]]:
    """Parameters of `CoreDecoder` by name. weights: by Hugging Face name."""
    for ours, theirs in ENDS.items():
        if ours in weights:
            yield theirs, weights[ours]
    width = architecture.head_dim
    for layer in range(architecture.num_layers):
        hf, megatron = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for ours, theirs in LAYER.items():
            if f"{hf}.{ours}" in weights:
                yield f"{megatron}.{theirs}", weights[f"{hf}.{ours}"]
        for kind in ("weight", "bias"):
            if f"{hf}.self_attn.q_proj.{kind}" in weights:
                parts = [
                    _split(weights[f"{hf}.self_attn.{part}_proj.{kind}"], -1, heads, width)
                    for part, heads in zip("qkv", (architecture.repeats, 1, 1), strict=True)
                ]
                packed = torch.cat(parts, dim=1)
                yield f"{megatron}.self_attention.linear_qkv.{kind}", packed.flatten(0, 2)
        gate_up = [weights[f"{hf}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        yield f"{megatron}.mlp.linear_fc1.weight", torch.cat(gate_up)


def to_hf(
    weights: Mapping[str, Tensor], architecture: Architecture
) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `to_megatron`; views where a tensor is the same in both."""
    for ours, theirs in ENDS.items():
        if theirs in weights:
            yield ours, weights[theirs]
    repeats = architecture.repeats
    for layer in range(architecture.num_layers):
        hf, megatron = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for ours, theirs in LAYER.items():
            if f"{megatron}.{theirs}" in weights:
                yield f"{hf}.{ours}", weights[f"{megatron}.{theirs}"]
        for kind in ("weight", "bias"):
            name = f"{megatron}.self_attention.linear_qkv.{kind}"
            if name in weights:
                packed = _split(weights[name], -1, repeats + 2, architecture.head_dim)
                for part, heads in zip(
                    "qkv", torch.split(packed, [repeats, 1, 1], dim=1), strict=True
                ):
                    yield f"{hf}.self_attn.{part}_proj.{kind}", heads.flatten(0, 2)
        gate, up = weights[f"{megatron}.mlp.linear_fc1.weight"].chunk(2)
        yield f"{hf}.mlp.gate_proj.weight", gate
        yield f"{hf}.mlp.up_proj.weight", up


def _split(tensor: Tensor, *sizes: int) -> Tensor:
    """The first dim in several."""
    return tensor.reshape(*sizes, *tensor.shape[1:])
