"""`rollout.quantization: int8` in vLLM: linear layers' matrices in 8 bits, rounded like the torch engine's.

Called by `vllm_start`; imports vLLM. vLLM has 8-bit products that also round activations, and others for
weights stored in 8 bits. On CPU it has none that rounds weights alone at loading. This quantization method is
registered by vLLM's public call. Each layer's matrix is rounded once all of it has been loaded, at the start
and whenever weights are reloaded, and is dequantized for its product.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.linear import (
    LinearBase,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.models.fused.fused_weights import Int8Weights

NAME = "rljob_int8"
EXPERTS = {"FusedMoE", "RoutedExperts"}  # vLLM's class names of a layer's experts


class Int8Linear(UnquantizedLinearMethod):  # type: ignore[misc]
    """A linear layer whose matrix is loaded in `dtype`, [O, I], and stored in 8 bits with a scale a row."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Round the loaded weights; vLLM calls it again for a layer that is already rounded."""
        loaded = layer.weight
        if loaded.dtype == torch.int8:
            return
        rounded = Int8Weights(
            torch.empty_like(loaded, dtype=torch.int8),
            torch.empty(len(loaded), dtype=torch.float32, device=loaded.device),
            _max_over_ranks if _shares_columns(layer) else _unchanged,
        )
        rounded.copy_(loaded)
        layer.weight = Parameter(rounded.values, requires_grad=False)
        layer.weight_scale = Parameter(rounded.scales, requires_grad=False)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by the dequantized matrix. x: [T, I] -> [T, O]."""
        dequantized = (layer.weight * layer.weight_scale[:, None]).to(x.dtype)
        return product(x, dequantized, bias)


@register_quantization_config(NAME)
class Int8(QuantizationConfig):  # type: ignore[misc]
    """Quantize all linear layers; embedding, head, norms and biases keep their type.

    Raises ValueError for experts, whose kernels in vLLM take weights in other formats.
    """

    def get_name(self) -> str:
        return NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, object]) -> "Int8":
        del config
        return cls()

    def get_quant_method(self, layer: Module, prefix: str) -> Int8Linear | None:
        """Return the int8 method of a linear layer, None for other layers. Raises ValueError for experts."""
        if type(layer).__name__ in EXPERTS:
            raise ValueError(f"{prefix} has experts, which are not rounded here")
        return Int8Linear() if isinstance(layer, LinearBase) else None


def _shares_columns(layer: Module) -> bool:
    """Return whether other ranks hold more input features of this layer's rows."""
    return isinstance(layer, RowParallelLinear) and layer.tp_size > 1


def _max_over_ranks(maxima: Tensor) -> Tensor:
    """Return the maxima over the ranks that share a layer, so that its rows are rounded as on one rank. [O]
    -> [O]."""
    dist.all_reduce(maxima, op=dist.ReduceOp.MAX, group=get_tp_group().device_group)
    return maxima


def _unchanged(maxima: Tensor) -> Tensor:
    return maxima
