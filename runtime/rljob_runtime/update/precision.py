"""Dtypes of gradients and main copies for weights below single precision.

The update engine and AdamW call this. A weight in bfloat16 has 8 significant bits, so that a step of a
thousandth of it would be lost. Gradients are therefore summed in float32, and AdamW steps a float32 copy of
each weight, its main weight, which is rounded into the model's (arXiv:1710.03740).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError

TRAINED = (torch.bfloat16, torch.float32, torch.float64)


def main_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of a weight's gradient, moments and main copy: float32, or the weight's if that is
    wider."""
    return torch.promote_types(weight.dtype, torch.float32)


def needs_main(weight: Tensor) -> bool:
    """Return whether a weight is narrower than its main dtype."""
    return main_dtype(weight) != weight.dtype


def widen_gradients(parameters: Mapping[str, Tensor]) -> None:
    """Make autograd accumulate these leaf tensors' gradients in `main_dtype`."""
    for parameter in parameters.values():
        if needs_main(parameter):
            parameter.grad_dtype = main_dtype(parameter)


def main_weights(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 copies of the weights that need one."""
    return {
        name: parameter.detach().to(main_dtype(parameter))
        for name, parameter in parameters.items()
        if needs_main(parameter)
    }


def check_types(parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for dtypes that this engine does not train."""
    types = {parameter.dtype for parameter in parameters.values()}
    if len(types) != 1 or not types <= set(TRAINED):
        named = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in types))
        raise ConfigError(
            f"the update engine `torch` cannot train weights of type {named} (spec.update.dtype): it takes "
            "float32, or bfloat16, whose range needs no scaled losses; use one of these for all weights"
        )
