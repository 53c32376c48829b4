"""Megatron Core where torch has no accelerator: its `cuda` calls run on the CPU.

`core` calls this on emulated devices. Megatron's modules get their own `torch`. torch itself is unchanged
except for the names of tensor types, and only while Megatron's optimizer checks them.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import torch

FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange")
PACKAGE = "megatron.core"


class _ModuleOverlay(ModuleType):
    """A module that overrides some names of another module."""

    def __init__(self, module: ModuleType, overrides: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(overrides)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Stream(torch.cpu.Stream):
    """A CPU stream with the members that torch's lacks: a device argument and synchronization."""

    def __init__(self, device: object = None, priority: int = -1) -> None:
        super().__init__(priority)

    def synchronize(self) -> None:
        """Return immediately, since the CPU has no pending work."""

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has completed."""
        return event or torch.cpu.Event()


def install() -> None:
    """Replace `torch` in all imported Megatron modules by one whose accelerator is the CPU."""
    from megatron.core import fp8_utils
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = _keep_tensor
    if not getattr(fp8_utils, "HAVE_TE", False):  # 0.12 quantizes none of no parameters, or raises
        fp8_utils._quantize_param_shard_impl = lambda *args, **kwargs: None
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    overrides = {name: _on_cpu(getattr(torch, name)) for name in FACTORIES}
    on_cpu = _ModuleOverlay(torch, overrides | {"cuda": _cuda()})
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            _remove_compilation(module, within=name)
            if vars(module).get("torch") is torch:
                vars(module)["torch"] = on_cpu


@contextmanager
def named_as_on_cuda() -> Iterator[None]:
    """Report tensor types under CUDA's names, which Megatron's optimizer checks."""
    plain = torch.Tensor.type

    def named(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if dtype is not None:
            return plain(tensor, dtype, *args, **kwargs)
        return plain(tensor).replace("torch.", "torch.cuda.")

    torch.Tensor.type = named  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.type = plain  # type: ignore[method-assign]


def _remove_compilation(owner: Any, *, within: str) -> None:
    """Restore functions of a module and its classes from before torch.compile.

    Compilation would need a compiler, and a minute, where Megatron requests it.
    """
    for name, value in list(vars(owner).items()):
        plain = getattr(value, "_torchdynamo_orig_callable", None)
        if plain is not None:
            setattr(owner, name, plain)
        elif isinstance(value, type) and value.__module__ == within and value is not owner:
            _remove_compilation(value, within=within)


def _cuda() -> ModuleType:
    names = ("current_device", "synchronize", "current_stream", "stream", "Event")
    members: dict[str, Any] = {name: getattr(torch.cpu, name) for name in names}
    members |= {
        "Stream": _Stream,
        "default_stream": torch.cpu.current_stream,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
    }
    return _ModuleOverlay(torch.cuda, members)


def _keep_tensor(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return sizes of an all-to-all without the conversion to numbers that Megatron needs for devices."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(factory)
    def create(
        *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        cuda = device is not None and torch.device(device).type == "cuda"
        return factory(*args, device="cpu" if cuda else device, **kwargs)

    return create
