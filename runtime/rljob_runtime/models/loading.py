"""Load a Hugging Face directory as a policy that can be trained, or as a critic or reward model.

The device worker calls this. Our own decoder is used if it implements the architecture, transformers
otherwise; a scorer is always our own decoder.
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from rljob_api.model.tensors import HEAD, SCORE, SCORE_BIAS
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.weights import load_weights

logger = logging.getLogger(__name__)


def load_policy(path: Path, *, dtype: torch.dtype) -> PolicyModel:
    """Return the directory's model with its weights as `dtype`, on the CPU.

    Raises ConfigError without config.json or safetensors, WeightsError naming every tensor that is missing,
    extra or misshapen.
    """
    try:
        return load_decoder(path, dtype=dtype)
    except UnsupportedArchitecture as reason:
        logger.info("model=%s is computed by transformers: %s", path, reason)
    from rljob_runtime.models.transformers_model import TransformersModel

    return TransformersModel.from_path(path, dtype=dtype)


def load_decoder(path: Path, *, dtype: torch.dtype) -> Decoder:
    """Load the directory with our own decoder; raises UnsupportedArchitecture if it cannot, else as
    `load_policy`.

    Memory holds the model and, while it loads, one more tensor.
    """
    decoder = _empty(read_architecture(read_config(path)), path, dtype)
    load_weights(dict(decoder.named_hf_parameters()), path)
    return decoder


def _empty(architecture: Architecture, path: Path, dtype: torch.dtype) -> Decoder:
    try:
        return Decoder(architecture, dtype=dtype)
    except RuntimeError as error:  # torch's, of memory that is not there
        raise ConfigError(
            f"the sizes in {path / 'config.json'} make a model that this machine has no memory for "
            f"({str(error).splitlines()[0]}); copy the model again, or share it (spec.update.parallelism)"
        ) from error


def load_scorer(path: Path, *, dtype: torch.dtype) -> Decoder:
    """Load a classifier of one label, or a causal language model whose head is replaced by a scalar head of
    zeros.

    Raises ConfigError for a model that the decoder does not implement, otherwise as `load_policy`.
    """
    decoder = _empty(read_scorer(path), path, dtype)
    load_weights(
        dict(without_new_head(decoder.named_hf_parameters(), path)), path, left_out=new_head(path)
    )
    return decoder


def read_scorer(path: Path) -> Architecture:
    """Return the architecture that `load_scorer` builds. Raises ConfigError if it is not implemented."""
    try:
        return read_architecture(read_config(path)).scorer()
    except UnsupportedArchitecture as reason:
        raise ConfigError(
            f"{path} cannot be a critic or a reward model, since {reason}; use a model of these families"
        ) from reason


def new_head(path: Path) -> tuple[str, ...]:
    """Return the names that a scorer does not load from a directory: the head of a language model."""
    return () if read_architecture(read_config(path)).scores else (HEAD,)


def without_new_head(
    weights: Iterable[tuple[str, Tensor]], path: Path
) -> Iterator[tuple[str, Tensor]]:
    """Yield a scorer's weights that the directory has, and set the others to 0."""
    new_names = new_head(path)
    for name, weight in weights:
        if new_names and name in (SCORE, SCORE_BIAS):
            with torch.no_grad():
                weight.zero_()
        else:
            yield name, weight
