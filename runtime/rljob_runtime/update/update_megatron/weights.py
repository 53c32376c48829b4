"""A policy's weights as views of Megatron's parameters: both have each weight once.

The decoder that was loaded, which rollout, checkpoints and reshards look at, names weights as Hugging Face
does; `shared` says which rows of which parameter of `model` each of them is. Called by `engine`.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from rljob_runtime.errors import WeightsError

ENDS = ("model.embed_tokens.", "model.norm.", "lm_head.")
"""What a decoder has outside of its layers, here as there."""
LAYER = {
    "self_attention.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention.linear_proj": ("self_attn.o_proj",),
    "self_attention.q_layernorm": ("self_attn.q_norm",),
    "self_attention.k_layernorm": ("self_attn.k_norm",),
    "mlp.linear_fc1": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.linear_fc2": ("mlp.down_proj",),
    "mlp.shared_experts.linear_fc1": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
    ),
    "mlp.shared_experts.linear_fc2": ("mlp.shared_experts.down_proj",),
    "mlp.router": ("mlp.gate",),
    "input_layernorm": ("input_layernorm",),
    "pre_mlp_layernorm": ("post_attention_layernorm",),
}
"""Modules of Megatron's layers, and those of a decoder's whose rows follow each other in them."""
LATENT = {
    "self_attention.linear_q_proj": ("self_attn.q_proj",),
    "self_attention.linear_q_down_proj": ("self_attn.q_a_proj",),
    "self_attention.q_layernorm": ("self_attn.q_a_layernorm",),
    "self_attention.linear_q_up_proj": ("self_attn.q_b_proj",),
    "self_attention.linear_kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    "self_attention.kv_layernorm": ("self_attn.kv_a_layernorm",),
    "self_attention.linear_kv_up_proj": ("self_attn.kv_b_proj",),
}
"""Of latent attention, which others of its modules are called as those above."""
KINDS = {"expert_bias": "e_score_correction_bias"}
"""Tensors of modules that have other names; others are called alike."""
CORE = ".of_core."


def tensors_of(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """What models have as weights: parameters, and of buffers what enters the choice of experts."""
    buffers = (
        of for of in module.named_buffers(prefix) if of[0].endswith((*KINDS, *KINDS.values()))
    )
    return dict(chain(module.named_parameters(prefix), buffers))


def hold(
    own: Mapping[str, Tensor], held: Mapping[str, Tensor], *, latent: bool, filled: bool
) -> None:
    """Make a decoder's tensors views of Megatron's. filled: whether these have their values; else they are
    given the decoder's. Raises as `shared`."""
    for name, view in shared(
        {name: tensor.detach() for name, tensor in own.items()}, held, latent=latent
    ):
        if not filled:
            view.copy_(held[name].detach())
        held[name].data = view


def is_cut(name: str) -> bool:
    """Whether a parameter is no copy of what other tensor ranks have."""
    cut = ("embed_tokens", "lm_head", ".linear_", ".mlp.experts.")
    return any(part in name for part in cut) and "_down_proj.weight" not in name


def parts_of(name: str, *, latent: bool) -> list[str]:
    """Names of a decoder's tensors whose rows follow each other in one of Megatron's."""
    layer, inside, rest = name.partition(CORE)
    module, _, kind = rest.rpartition(".")
    stems = (LAYER | LATENT if latent else LAYER).get(module, (module,))
    return [f"{layer}.{stem}.{KINDS.get(kind, kind)}" for stem in stems] if inside else [name]


def shared(
    own: Mapping[str, Tensor], held: Mapping[str, Tensor], *, latent: bool
) -> Iterator[tuple[str, Tensor]]:
    """Names of `held`, a decoder's tensors, and what they are of `own`, Megatron's: views. latent: whether
    attention is. Raises WeightsError unless each fits and each of `own` is one of them whole."""
    found: set[str] = set()
    for name, tensor in own.items():
        names = parts_of(name, latent=latent)
        rows = [len(held[part]) if part in held else 0 for part in names]
        if 0 in rows or sum(rows) != len(tensor):
            raise WeightsError(
                f"Megatron's {name} {tuple(tensor.shape)} is made of {names}, of which the model has "
                f"{rows} rows"
            )
        found |= set(names)
        yield from zip(names, torch.split(tensor, rows), strict=True)
    if missing := sorted(held.keys() - found):
        raise WeightsError(
            f"Megatron's layers have nothing for {missing[0]} and {len(missing)} in all"
        )
