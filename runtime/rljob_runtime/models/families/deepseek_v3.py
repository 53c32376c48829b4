"""DeepSeek-V3 and R1: V2's blocks, experts by sigmoid with a correction bias for the choice.

The bias is loaded, used, sent to the rollout and saved, but not trained: its update rule needs the load of
full pre-training batches.
"""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.latent_sizes import (
    read_latent,
    read_latent_experts,
    write_latent,
)

MODEL_TYPE = "deepseek_v3"


def read(config: Config) -> Architecture:
    """Return the architecture of a DeepSeek-V3 config.json."""
    config.require("scoring_func", "sigmoid")
    config.require("topk_method", "noaux_tc")
    experts = read_latent_experts(
        config,
        first_layer=3,
        scores="sigmoid",
        normalized=config.flag("norm_topk_prob", True),
        groups=config.integer("n_group", 8),
        chosen_groups=config.integer("topk_group", 4),
        group_score="two best",
        correction_bias=True,
    )
    interleaved = config.flag("rope_interleave", True)
    return read_latent(config, experts=experts, interleaved=interleaved)


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to DeepSeek-V3."""
    assert architecture.latent is not None, "a DeepSeek model has latent attention"
    return write_latent(architecture) | {"rope_interleave": architecture.latent.interleaved}
