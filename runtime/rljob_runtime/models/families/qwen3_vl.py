"""Qwen3-VL, dense: Qwen3's layers, with positions whose axes rotate interleaved pairs of a head.

Outputs of several blocks of the vision tower are added to the output of the first layers.
"""

from dataclasses import replace

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads
from rljob_runtime.models.families.vision_sizes import read_vision, with_axes

DEFAULTS = {"rope_theta": 5e5, "max_position_embeddings": 128000}


def read(config: Config) -> Architecture:
    """Return the architecture of the decoder."""
    config = config.with_defaults(DEFAULTS)
    bias = config.flag("attention_bias")
    heads = read_heads(config, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True)
    architecture = with_axes(heads, config, default=[24, 20, 20], interleaved=True)
    tower = Config(config.name, config.mapping("vision_config"))
    added = len(tower.integers("deepstack_visual_indexes"))
    return replace(architecture, vision=replace(read_vision(config), added=added))
