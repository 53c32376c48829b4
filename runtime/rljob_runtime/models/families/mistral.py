"""Mistral without its sliding window: Llama's layers without biases."""

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import Config
from rljob_runtime.models.families.head_sizes import read_heads, refuse_windows, write_heads

MODEL_TYPE = "mistral"
WINDOW = 4096  # if config.json has no entry, not even null


def read(config: Config) -> Architecture:
    """Return the architecture of a Mistral config.json."""
    refuse_windows(config, window=config.entries.get("sliding_window", WINDOW))
    return read_heads(config)


def write(architecture: Architecture) -> dict[str, object]:
    """Return the entries of config.json that are specific to Mistral."""
    return write_heads(architecture)
