"""Mistral without its sliding window: Llama's shape, no biases."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_windows, write_heads

MODEL_TYPE = "mistral"
WINDOW = 4096  # where config.json does not name one, not even null


def read(config: Config) -> Architecture:
    """The architecture."""
    refuse_windows(config, window=config.entries.get("sliding_window", WINDOW))
    return read_heads(config)


def write(architecture: Architecture) -> dict[str, object]:
    """Its entries of config.json."""
    return write_heads(architecture)
