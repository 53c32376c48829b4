"""A Hugging Face directory as a policy that can be trained.

Called by the device worker. Our own decoder where it computes the architecture, transformers
otherwise.
"""

import logging
from pathlib import Path

import torch

from rljob_runtime.models.architecture import (
    UnsupportedArchitecture,
    read_architecture,
    read_config,
)
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.weights import check_weights, read_weights

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
    """The same, by our own decoder or UnsupportedArchitecture."""
    architecture = read_architecture(read_config(path))
    with torch.device("meta"):
        decoder = Decoder(architecture, dtype=dtype)
    weights = read_weights(path)
    shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    check_weights(weights, shapes, where=str(path))
    # Copies, so that no parameter is a view of the mapped file.
    owned = {name: tensor.to(dtype, copy=True) for name, tensor in weights.items()}
    decoder.load_state_dict(owned, assign=True)
    return decoder.requires_grad_(True)
