"""The table of everything that is used of Megatron Core, imported when an engine is created.

It is for the versions in `VERSIONS`: MindSpeed adapts the first to Ascend, PyPI has both.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import nn

from rljob_runtime.errors import ConfigError

VERSIONS = ("0.12", "0.16")
ADAPTOR = "mindspeed.megatron_adaptor"
"""Patches Megatron for NPUs; must be imported before Megatron."""
NEEDED = {
    "megatron": "needs Megatron Core 0.12.1 or 0.16: pip install '.[megatron]' in a clone",
    "mindspeed": "needs MindSpeed and the Megatron Core that it adapts, 0.12.1: docs/ascend.md",
}
CALLS = {
    "model_parallel_is_initialized": "megatron.core.parallel_state",
    "initialize_model_parallel": "megatron.core.parallel_state",
    "destroy_model_parallel": "megatron.core.parallel_state",
    "model_parallel_cuda_manual_seed": "megatron.core.tensor_parallel",
    "gather_from_sequence_parallel_region": "megatron.core.tensor_parallel",
    "TransformerConfig": "megatron.core.transformer",
    "MLATransformerConfig": "megatron.core.transformer",
    "TransformerLayer": "megatron.core.transformer.transformer_layer",
    "get_gpt_layer_local_spec": "megatron.core.models.gpt.gpt_layer_specs",
    "DistributedDataParallelConfig": "megatron.core.distributed",
    "DistributedDataParallel": "megatron.core.distributed",
    "finalize_model_grads": "megatron.core.distributed",
    "OptimizerConfig": "megatron.core.optimizer",
    "get_megatron_optimizer": "megatron.core.optimizer",
}
"""Names, and the modules that they are imported from."""


class CoreOptimizer(Protocol):
    """The used interface of Megatron's optimizer."""

    param_groups: list[dict[str, object]]
    optimizer: torch.optim.Optimizer
    model_param_group_index_map: Mapping[nn.Parameter, tuple[int, int]]
    """For the distributed optimizer: group and index of the stepped shard of each of the model's
    parameters.
    """

    def _get_model_param_range_map(self, param: nn.Parameter) -> Mapping[str, Any]:
        """Return, for the distributed optimizer, the items that this rank steps as `param`."""
        ...

    def prepare_grads(self) -> bool:
        """Copy `main_grad` of each parameter."""
        ...

    def get_grad_norm(self) -> float:
        """Return the norm of the prepared gradients over all ranks of the model."""
        ...

    def step(self) -> tuple[bool, float | None, int | None]:
        """Copy, clip and apply `main_grad` of each parameter; returns whether it did, and the norm before."""
        ...

    def zero_grad(self) -> None:
        """Clear the `grad` of all parameters."""
        ...

    def reload_model_params(self) -> None:
        """Copy the model's weights into the main weights."""
        ...


class ShardedModel(Protocol):
    """The used interface of Megatron's DistributedDataParallel."""

    def zero_grad_buffer(self) -> None:
        """Set the `main_grad` of all parameters to zero."""
        ...

    def scale_gradients(self, scaling_factor: float) -> None:
        """Multiply the `main_grad` of all parameters."""
        ...


@dataclass(frozen=True, slots=True)
class Core:
    """The table's functions and classes. as_cuda: wraps code that checks the names of tensors' types."""

    as_cuda: Callable[[], AbstractContextManager[None]]
    model_parallel_is_initialized: Callable[[], bool]
    initialize_model_parallel: Callable[..., None]
    destroy_model_parallel: Callable[[], None]
    model_parallel_cuda_manual_seed: Callable[[int], None]
    gather_from_sequence_parallel_region: Callable[[torch.Tensor], torch.Tensor]
    TransformerConfig: Callable[..., object]
    MLATransformerConfig: Callable[..., object]
    TransformerLayer: Callable[..., nn.Module]
    get_gpt_layer_local_spec: Callable[..., object]
    DistributedDataParallelConfig: Callable[..., object]
    DistributedDataParallel: Callable[..., ShardedModel]
    finalize_model_grads: Callable[[Iterable[ShardedModel]], None]
    OptimizerConfig: Callable[..., object]
    get_megatron_optimizer: Callable[..., CoreOptimizer]


def open_core(engine: str) -> Core:
    """Import the table for `megatron` or `mindspeed`.

    Raises ConfigError if it is not installed or has another version.
    """
    try:
        # It warns about missing CUDA libraries and its own settings, neither of which a user can change.
        warnings.filterwarnings("ignore", module=r"megatron\.")
        if engine == "mindspeed":
            import_module(ADAPTOR)
        members = {name: getattr(import_module(module), name) for name, module in CALLS.items()}
        version = str(import_module("megatron.core").__version__)
        _without_transformer_engine()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"spec.update.engine is {engine!r}, which {NEEDED[engine]}; but {error}; or use "
            "update.engine: torch"
        ) from error
    if not version.startswith(VERSIONS):
        raise ConfigError(
            f"spec.update.engine is {engine!r}, and Megatron Core {version} is installed; it "
            f"{NEEDED[engine]}"
        )
    as_cuda: Callable[[], AbstractContextManager[None]] = nullcontext
    if engine == "megatron" and not torch.cuda.is_available():
        from rljob_runtime.update.update_megatron import on_cpu

        on_cpu.install()
        as_cuda = on_cpu.named_as_on_cuda
    return Core(as_cuda=as_cuda, **members)


def _without_transformer_engine() -> None:
    """Fix two modules of 0.16 that assume Transformer Engine where it is not installed."""
    moe = import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(moe, "te_general_gemm"):
        vars(moe)["te_general_gemm"] = None
    latent = vars(import_module("megatron.core.transformer.multi_latent_attention"))
    if not isinstance(latent.get("TELinear"), type):
        latent["HAVE_TE"] = False
