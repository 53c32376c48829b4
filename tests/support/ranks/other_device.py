"""A device beside the host's memory, for this process and its forks: what mixes the two fails as on a GPU.

Its tensors are the host's behind a wrapper, computed there bit for bit; torch sees a device of another type.
Memory is not told apart: nothing swaps storages here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "other"
_setup_privateuseone_for_python_backend(NAME)
OTHER = torch.device(NAME, 0)
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class OnOther(Tensor):
    """A tensor of the other device. held: its values, on the host."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnOther":
        made: OnOther = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=OTHER,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Which torch does not give of wrappers."""
        return self.held.tolist()


def _empty(size: Any, stride: Any, *, dtype: Any = None, **named: Any) -> Tensor:
    return OnOther(torch.empty_strided(size, stride, dtype=dtype))


def _empty_in_order(size: Any, *, dtype: Any = None, **named: Any) -> Tensor:
    return OnOther(torch.empty(size, dtype=dtype))


def _range(*bounds: Any, dtype: Any = None, **named: Any) -> Tensor:
    return OnOther(torch.arange(*bounds, dtype=dtype))


def _copy(source: Tensor, target: Tensor, *_: Any, **named: Any) -> Tensor:
    _held(target).copy_(_held(source))
    return target


LIBRARY: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
"""What makes tensors: others are made of those that are there."""
for name, made in {
    "empty_strided": _empty,
    "empty.memory_format": _empty_in_order,
    "arange.start_step": _range,
    "arange.start": _range,
    "arange": _range,
    "_copy_from": _copy,
}.items():
    LIBRARY.impl(name, made, "PrivateUse1")


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Within, there is one. Wrappers know no inference mode."""
    with patch("torch.inference_mode", torch.no_grad):
        yield OTHER


def computed(function: Any, arguments: Any, named: dict[str, Any]) -> Any:
    """The operation on the host's values. Raises RuntimeError where it mixes devices."""
    flat, _ = tree_flatten((arguments, named))
    there = [one for one in flat if isinstance(one, OnOther)]
    asked = named.get("device")
    if function not in COPIES:
        here = [one for one in flat if isinstance(one, Tensor) and not isinstance(one, OnOther)]
        indices = function in (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
        if there and not indices and (mixed := [one for one in here if one.dim()]):
            raise RuntimeError(f"{function} takes {mixed[0].shape} of cpu beside {OTHER}")
    on_other = torch.device(asked).type == NAME if asked is not None else bool(there)
    if function is torch.ops.aten.copy_.default:
        on_other = isinstance(arguments[0], OnOther)
    if asked is not None:
        named = named | {"device": torch.device("cpu")}
    found = function(*tree_map(_held, arguments), **tree_map(_held, named))
    if not on_other:
        return found
    known = {id(one.held): one for one in there}  # what is written in place is itself

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else OnOther(value)

    return tree_map(wrapped, found)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnOther) else value
