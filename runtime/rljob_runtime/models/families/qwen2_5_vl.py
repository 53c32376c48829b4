"""Qwen2.5-VL: Qwen2.5's layers, with positions whose three axes each rotate a section of a head."""

from dataclasses import replace

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_qwen_windows
from rljob_runtime.models.families.vision_sizes import read_vision, with_axes

DEFAULTS = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 32768}


def read(config: Config) -> Architecture:
    """Return the architecture of the decoder."""
    config = config.with_defaults(DEFAULTS)
    refuse_qwen_windows(config)
    architecture = with_axes(read_heads(config, qkv_bias=True), config, default=[16, 24, 24])
    return replace(architecture, vision=read_vision(config))
