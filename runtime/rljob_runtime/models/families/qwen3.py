"""Qwen3: query and key heads are normalized, attention biases are optional."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_qwen_windows, write_heads

MODEL_TYPE = "qwen3"


def read(config: Config) -> Architecture:
    """Return the architecture of a Qwen3 config.json."""
    refuse_qwen_windows(config)
    bias = config.flag("attention_bias")
    return read_heads(config, head_dim=128, qkv_bias=bias, output_bias=bias, qk_norm=True)


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to Qwen3."""
    return write_heads(architecture)
