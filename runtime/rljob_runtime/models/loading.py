"""A Hugging Face directory as a policy that can be trained.

Called by the device worker. Our own decoder where it computes the architecture, transformers
otherwise.
"""

import logging
from pathlib import Path

import torch

from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.weights import load_weights

logger = logging.getLogger(__name__)


def load_policy(path: Path, *, dtype: torch.dtype) -> PolicyModel:
    """The directory's model with its weights as `dtype`, on the CPU.

    Raises ConfigError without config.json or safetensors, WeightsError naming every tensor that is
    missing, extra or misshapen.
    """
    try:
        return load_decoder(path, dtype=dtype)
    except UnsupportedArchitecture as reason:
        logger.info("model=%s is computed by transformers: %s", path, reason)
    from rljob_runtime.models.transformers_model import TransformersModel

    return TransformersModel.from_path(path, dtype=dtype)


def load_decoder(path: Path, *, dtype: torch.dtype) -> Decoder:
    """The same, by our own decoder or UnsupportedArchitecture.

    Holds the model and, while it loads, one tensor more.
    """
    decoder = Decoder(read_architecture(read_config(path)), dtype=dtype)
    load_weights(dict(decoder.named_hf_parameters()), path)
    return decoder
