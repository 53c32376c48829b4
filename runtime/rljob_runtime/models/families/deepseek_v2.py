"""DeepSeek-V2: latent attention, experts by softmax out of the best groups, a shared expert."""

from typing import Any

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.latent_sizes import (
    read_latent,
    read_latent_experts,
    write_latent,
)

MODEL_TYPE = "deepseek_v2"


def read(config: Config) -> Architecture:
    """Return the architecture of a DeepSeek-V2 config.json."""
    config.require("scoring_func", "softmax")
    config.require("topk_method", "greedy", "group_limited_greedy")
    config.require("norm_topk_prob", False)
    groups: dict[str, Any] = {}
    if config.get("topk_method") == "group_limited_greedy":
        groups["groups"] = config.integer("n_group")
        groups["chosen_groups"] = config.integer("topk_group")
    experts = read_latent_experts(config, first_layer=0, normalized=False, **groups)
    return read_latent(config, experts=experts, interleaved=True, mlp_bias=config.flag("mlp_bias"))


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to DeepSeek-V2."""
    experts = architecture.experts
    grouped = experts is not None and experts.groups > 1
    return write_latent(architecture) | {
        "topk_method": "group_limited_greedy" if grouped else "greedy",
        "mlp_bias": architecture.mlp_bias,
    }
