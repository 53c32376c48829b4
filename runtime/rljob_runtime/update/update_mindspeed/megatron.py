"""All that is called of MindSpeed and Megatron Core, in one table, imported when an engine is made.

Written for Megatron Core 0.12.1, which MindSpeed's releases for core_r0.12.1 adapt to Ascend.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

import torch
from torch import Tensor, nn

from rljob_runtime.errors import ConfigError

ADAPTOR = "mindspeed.megatron_adaptor"
"""Patches Megatron for NPUs as it is imported; before Megatron is."""

CALLS = {
    "model_parallel_is_initialized": "megatron.core.parallel_state",
    "initialize_model_parallel": "megatron.core.parallel_state",
    "model_parallel_cuda_manual_seed": "megatron.core.tensor_parallel",
    "TransformerConfig": "megatron.core.transformer",
    "get_gpt_layer_local_spec": "megatron.core.models.gpt.gpt_layer_specs",
    "GPTModel": "megatron.core.models.gpt",
    "DistributedDataParallelConfig": "megatron.core.distributed",
    "DistributedDataParallel": "megatron.core.distributed",
    "finalize_model_grads": "megatron.core.distributed",
    "OptimizerConfig": "megatron.core.optimizer",
    "get_megatron_optimizer": "megatron.core.optimizer",
}
"""Names and the modules that they are imported from."""


class MegatronOptimizer(Protocol):
    """What is asked of Megatron's optimizer."""

    param_groups: list[dict[str, object]]

    def step(self) -> tuple[bool, float | None, int | None]:
        """Clip, then apply `main_grad` of each parameter: whether it did, and the norm before."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Nested, of tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """What `state_dict` gave."""
        ...


class ShardedModel(Protocol):
    """What is asked of Megatron's DistributedDataParallel."""

    def __call__(self, *, input_ids: Tensor, position_ids: Tensor, attention_mask: None) -> Tensor:
        """Logits [B, S, V]."""
        ...

    def zero_grad_buffer(self) -> None:
        """Set the `main_grad` of all parameters to zero."""
        ...


@dataclass(frozen=True, slots=True)
class Megatron:
    """The table's functions and classes."""

    model_parallel_is_initialized: Callable[[], bool]
    initialize_model_parallel: Callable[..., None]
    model_parallel_cuda_manual_seed: Callable[[int], None]
    TransformerConfig: Callable[..., object]
    get_gpt_layer_local_spec: Callable[..., object]
    GPTModel: Callable[..., nn.Module]
    DistributedDataParallelConfig: Callable[..., object]
    DistributedDataParallel: Callable[..., ShardedModel]
    finalize_model_grads: Callable[[Iterable[ShardedModel], torch.Tensor], None]
    OptimizerConfig: Callable[..., object]
    get_megatron_optimizer: Callable[..., MegatronOptimizer]


def open_megatron() -> Megatron:
    """Import the table. Raises ConfigError where MindSpeed or Megatron Core is not installed."""
    try:
        import_module(ADAPTOR)
        found = {name: getattr(import_module(module), name) for name, module in CALLS.items()}
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"spec.update.engine is 'mindspeed', which needs MindSpeed and Megatron Core 0.12.1, but "
            f"{error}; install both in the job's image (docs/ascend.md), or use update.engine: torch"
        ) from error
    return Megatron(**found)


def main_grad(parameter: nn.Parameter) -> Tensor:
    """What DistributedDataParallel adds a parameter's gradients up in."""
    gradient = parameter.main_grad  # type: ignore[attr-defined]
    assert isinstance(gradient, Tensor), "DistributedDataParallel gives every parameter one"
    return gradient
