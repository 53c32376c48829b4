"""Megatron Core where torch has no accelerator: what it asks of `cuda` is answered by the CPU.

Called by `core` on emulated devices. Megatron's modules get a `torch` of their own; torch itself stays as it
is, but for the names of tensor types, and those only while Megatron's optimizer looks at them.
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


class _Answering(ModuleType):
    """A module with some names of its own; all others are of the one that it stands for."""

    def __init__(self, whole: ModuleType, own: dict[str, Any]) -> None:
        super().__init__(whole.__name__)
        self.__dict__.update(own)
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


class _Stream(torch.cpu.Stream):
    """What the CPU's lacks: a device to be made on, and ends to wait for."""

    def __init__(self, device: object = None, priority: int = -1) -> None:
        super().__init__(priority)

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def record_event(self, event: Any = None) -> Any:
        """One that has happened."""
        return event or torch.cpu.Event()


def answer() -> None:
    """Give Megatron's modules, all that are imported now, a `torch` whose accelerator is the CPU."""
    from megatron.core import fp8_utils
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = _numbers
    if not getattr(fp8_utils, "HAVE_TE", False):  # 0.12 quantizes none of no parameters, or raises
        fp8_utils._quantize_param_shard_impl = lambda *args, **kwargs: None
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    own = {name: _on_cpu(getattr(torch, name)) for name in FACTORIES}
    on_cpu = _Answering(torch, own | {"cuda": _cuda()})
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGE):
            _uncompiled(module, within=name)
            if vars(module).get("torch") is torch:
                vars(module)["torch"] = on_cpu


@contextmanager
def named_as_on_cuda() -> Iterator[None]:
    """Tensors name their types as CUDA's do, by which Megatron's optimizer knows them."""
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


def _uncompiled(owner: Any, *, within: str) -> None:
    """Functions of a module and of its classes as they were before torch.compile, which would take a compiler
    and a minute where Megatron asks for it."""
    for name, value in list(vars(owner).items()):
        plain = getattr(value, "_torchdynamo_orig_callable", None)
        if plain is not None:
            setattr(owner, name, plain)
        elif isinstance(value, type) and value.__module__ == within and value is not owner:
            _uncompiled(value, within=within)


def _cuda() -> ModuleType:
    names = ("current_device", "synchronize", "current_stream", "stream", "Event")
    own: dict[str, Any] = {name: getattr(torch.cpu, name) for name in names}
    own |= {
        "Stream": _Stream,
        "default_stream": torch.cpu.current_stream,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
    }
    return _Answering(torch.cuda, own)


def _numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Megatron makes numbers of the sizes of an all-to-all where they come from a device."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(factory)
    def made(
        *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any
    ) -> torch.Tensor:
        cuda = device is not None and torch.device(device).type == "cuda"
        return factory(*args, device="cpu" if cuda else device, **kwargs)

    return made
