"""Qwen2 and Qwen2.5: biases of queries, keys and values always."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_qwen_windows, write_heads

MODEL_TYPE = "qwen2"


def read(config: Config) -> Architecture:
    """The architecture."""
    refuse_qwen_windows(config)
    return read_heads(config, qkv_bias=True)


def write(architecture: Architecture) -> dict[str, object]:
    """Its entries of config.json."""
    return write_heads(architecture)
