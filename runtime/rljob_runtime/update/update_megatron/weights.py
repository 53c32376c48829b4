"""A policy's weights as views of Megatron's parameters: each weight exists once.

Rollout, checkpoints and reshards read the loaded decoder, which names weights as Hugging Face does; `shared`
returns which rows of which parameter of `model` each of them is. `engine` calls this.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from rljob_runtime.errors import WeightsError

ENDS = ("model.embed_tokens.", "model.norm.", "lm_head.")
"""Prefixes of a decoder's tensors outside of its layers, equal in both."""
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
"""Modules of Megatron's layers, and the decoder's modules whose rows they concatenate."""
LATENT = {
    "self_attention.linear_q_proj": ("self_attn.q_proj",),
    "self_attention.linear_q_down_proj": ("self_attn.q_a_proj",),
    "self_attention.q_layernorm": ("self_attn.q_a_layernorm",),
    "self_attention.linear_q_up_proj": ("self_attn.q_b_proj",),
    "self_attention.linear_kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    "self_attention.kv_layernorm": ("self_attn.kv_a_layernorm",),
    "self_attention.linear_kv_up_proj": ("self_attn.kv_b_proj",),
}
"""Modules of latent attention, some of which have the same names as those above."""
KINDS = {"expert_bias": "e_score_correction_bias"}
"""Tensors with different names in both; other names are equal."""
CORE = ".of_core."


def tensors_of(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Return a model's weights: parameters, and the buffers that affect the choice of experts."""
    buffers = (
        named
        for named in module.named_buffers(prefix)
        if named[0].endswith((*KINDS, *KINDS.values()))
    )
    return dict(chain(module.named_parameters(prefix), buffers))


def hold(
    megatron_tensors: Mapping[str, Tensor],
    policy_tensors: Mapping[str, Tensor],
    *,
    latent: bool,
    filled: bool,
) -> None:
    """Make a decoder's tensors views of Megatron's.

    filled: whether Megatron's tensors have their values; otherwise the decoder's are copied into them. Raises
    as `shared`.
    """
    for name, view in shared(
        {name: tensor.detach() for name, tensor in megatron_tensors.items()},
        policy_tensors,
        latent=latent,
    ):
        if not filled:
            view.copy_(policy_tensors[name].detach())
        policy_tensors[name].data = view


def is_cut(name: str) -> bool:
    """Return whether tensor ranks have different slices of a parameter."""
    cut = ("embed_tokens", "lm_head", ".linear_", ".mlp.experts.")
    return any(fragment in name for fragment in cut) and "_down_proj.weight" not in name


def source_names(name: str, *, latent: bool) -> list[str]:
    """Return the names of a decoder's tensors whose rows are concatenated in one of Megatron's."""
    layer, inside, qualified = name.partition(CORE)
    module, _, kind = qualified.rpartition(".")
    stems = (LAYER | LATENT if latent else LAYER).get(module, (module,))
    return [f"{layer}.{stem}.{KINDS.get(kind, kind)}" for stem in stems] if inside else [name]


def shared(
    megatron_tensors: Mapping[str, Tensor], policy_tensors: Mapping[str, Tensor], *, latent: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of `policy_tensors`, and their views of `megatron_tensors`.

    latent: whether attention is latent. Raises WeightsError unless each fits and each of Megatron's tensors
    consists of full tensors of the policy.
    """
    translated: set[str] = set()
    for name, tensor in megatron_tensors.items():
        names = source_names(name, latent=latent)
        rows = [len(policy_tensors[source]) if source in policy_tensors else 0 for source in names]
        if 0 in rows or sum(rows) != len(tensor):
            raise WeightsError(
                f"Megatron's {name} {tuple(tensor.shape)} is made of {names}, of which the model has "
                f"{rows} rows"
            )
        translated |= set(names)
        yield from zip(names, torch.split(tensor, rows), strict=True)
    if missing := sorted(policy_tensors.keys() - translated):
        raise WeightsError(
            f"Megatron's layers have nothing for {missing[0]} and {len(missing)} in all"
        )
