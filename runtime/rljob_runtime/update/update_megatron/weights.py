"""Weights of decoders between Hugging Face's names and those of `model`, whole or a tensor rank's.

Megatron keeps queries, keys and values in one matrix, group by group: the query heads of a key head,
then the key head, then its value head. Gate and up projection follow each other in another one. Pure;
called by `engine`.
"""

# H hidden, D width of a head, G key heads of the rank, R query heads of each

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture

ENDS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
"""What a decoder has outside of its layers, here as there."""
LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "self_attn.q_norm.weight": "self_attention.q_layernorm.weight",
    "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
    "post_attention_layernorm.weight": "pre_mlp_layernorm.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
    "mlp.gate.weight": "mlp.router.weight",
}
"""What both have one tensor for in a layer."""


def is_cut(name: str) -> bool:
    """Whether tensor ranks share a parameter; of others each has all."""
    return "embed_tokens" in name or "lm_head" in name or ".linear_" in name


def to_megatron(
    weights: Mapping[str, Tensor], architecture: Architecture
) -> Iterator[tuple[str, Tensor]]:
    """Parameters of `CoreDecoder` by name. weights: by Hugging Face name."""
    yield from ((name, weights[name]) for name in ENDS if name in weights)
    width = architecture.head_dim
    for layer in range(architecture.num_layers):
        hf, megatron = f"model.layers.{layer}", f"model.layers.{layer}.of_core"
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
        yield from _joined(weights, f"{hf}.mlp", f"{megatron}.mlp")
        for place, number in enumerate(_experts(weights, f"{hf}.mlp.experts")):
            of, to = f"{hf}.mlp.experts.{number}", f"{megatron}.mlp.experts.local_experts.{place}"
            yield from _joined(weights, of, to)
            yield f"{to}.linear_fc2.weight", weights[f"{of}.down_proj.weight"]


def to_hf(
    weights: Mapping[str, Tensor], architecture: Architecture, *, first_expert: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """The inverse of `to_megatron`; views where a tensor is the same in both. first_expert: number of the
    first one that the rank has."""
    yield from ((name, weights[name]) for name in ENDS if name in weights)
    repeats = architecture.repeats
    for layer in range(architecture.num_layers):
        hf, megatron = f"model.layers.{layer}", f"model.layers.{layer}.of_core"
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
        yield from _split_up(weights, f"{megatron}.mlp", f"{hf}.mlp")
        for place in _experts(weights, f"{megatron}.mlp.experts.local_experts"):
            of, to = f"{megatron}.mlp.experts.local_experts.{place}", f"{hf}.mlp.experts"
            yield from _split_up(weights, of, f"{to}.{first_expert + place}")
            yield (
                f"{to}.{first_expert + place}.down_proj.weight",
                weights[f"{of}.linear_fc2.weight"],
            )


def _joined(weights: Mapping[str, Tensor], of: str, to: str) -> Iterator[tuple[str, Tensor]]:
    """Gate and up projection as one, where there are any."""
    if f"{of}.gate_proj.weight" in weights:
        gate_up = [weights[f"{of}.{part}_proj.weight"] for part in ("gate", "up")]
        yield f"{to}.linear_fc1.weight", torch.cat(gate_up)


def _split_up(weights: Mapping[str, Tensor], of: str, to: str) -> Iterator[tuple[str, Tensor]]:
    """Gate and up projection, where there is one."""
    if f"{of}.linear_fc1.weight" in weights:
        gate, up = weights[f"{of}.linear_fc1.weight"].chunk(2)
        yield f"{to}.gate_proj.weight", gate
        yield f"{to}.up_proj.weight", up


def _experts(weights: Mapping[str, Tensor], prefix: str) -> list[int]:
    """Numbers of those that a layer has here."""
    start = len(prefix) + 1
    names = (name[start:] for name in weights if name.startswith(f"{prefix}."))
    return sorted({int(name.partition(".")[0]) for name in names})


def _split(tensor: Tensor, *sizes: int) -> Tensor:
    """The first dim in several."""
    return tensor.reshape(*sizes, *tensor.shape[1:])
