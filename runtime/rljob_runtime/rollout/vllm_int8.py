"""`rollout.quantization: int8` in vLLM: matrices of linear layers in 8 bits, rounded as the torch engine's.

Called by `vllm_start`; imports vLLM. vLLM has products of 8 bits where activations are rounded too, and for
weights that are stored so, but on CPU none that rounds weights alone as they come. This is a quantization
method of our own, registered by vLLM's public call: each layer's matrix is rounded once all of it has
arrived, at the start and whenever weights are reloaded, and is made wide again for its product.
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
EXPERTS = {"FusedMoE", "RoutedExperts"}  # one layer's, by vLLM's names of it


class Int8Linear(UnquantizedLinearMethod):  # type: ignore[misc]
    """A linear layer whose matrix comes in `dtype`, [O, I], and stays in 8 bits with a scale a row."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Round what has arrived; vLLM calls it again for a layer that is rounded."""
        arrived = layer.weight
        if arrived.dtype == torch.int8:
            return
        held = Int8Weights(
            torch.empty_like(arrived, dtype=torch.int8),
            torch.empty(len(arrived), dtype=torch.float32, device=arrived.device),
            _widest_of_all if _shares_columns(layer) else _own,
        )
        held.copy_(arrived)
        layer.weight = Parameter(held.values, requires_grad=False)
        layer.weight_scale = Parameter(held.scales, requires_grad=False)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x: [T, I] -> [T, O]."""
        wide = (layer.weight * layer.weight_scale[:, None]).to(x.dtype)
        return product(x, wide, bias)


@register_quantization_config(NAME)
class Int8(QuantizationConfig):  # type: ignore[misc]
    """All linear layers; embedding, head, norms and biases stay as they are.

    Raises ValueError for experts, whose kernels in vLLM take weights of their own forms.
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
        if type(layer).__name__ in EXPERTS:
            raise ValueError(f"{prefix} has experts, which are not rounded here")
        return Int8Linear() if isinstance(layer, LinearBase) else None


def _shares_columns(layer: Module) -> bool:
    """Whether other ranks hold more input features of this layer's rows."""
    return isinstance(layer, RowParallelLinear) and layer.tp_size > 1


def _widest_of_all(found: Tensor) -> Tensor:
    """Largest over the ranks that share a layer, so that its rows are rounded as on one rank. [O] -> [O]."""
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=get_tp_group().device_group)
    return found


def _own(found: Tensor) -> Tensor:
    return found
