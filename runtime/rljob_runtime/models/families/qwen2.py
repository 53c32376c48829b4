"""Qwen2 and Qwen2.5: queries, keys and values always have biases."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_qwen_windows, write_heads

MODEL_TYPE = "qwen2"


def read(config: Config) -> Architecture:
    """Return the architecture of a Qwen2 config.json."""
    refuse_qwen_windows(config)
    return read_heads(config, qkv_bias=True)


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to Qwen2."""
    return write_heads(architecture)
