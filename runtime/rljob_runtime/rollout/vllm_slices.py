"""Slices for vLLM's weight loaders, which expect full tensors and keep a rank's slice of each.

Called by `rollout_vllm`. A loader reads a tensor's shape, narrows it to its rank's slice, and copies that. So
it gets a tensor of the full shape that stores the rank's slice alone.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_runtime.errors import WeightsError

REMEDY = "use spec.resharding.strategy: stream"


def as_full_tensor(local_slice: TensorBox, local: Tensor) -> Tensor:
    """Return a tensor of the full tensor's shape, of which the local slice can be read. local: the slice's
    values."""
    shape = local_slice.tensor.shape
    if local.shape == torch.Size(shape):
        return local
    starts = (local_slice.box.top, local_slice.box.left)[: len(shape)]
    return SliceOfFull(local_slice.tensor.name, local, shape, starts)


class SliceOfFull(Tensor):
    """A tensor of which only a slice exists, as `as_full_tensor` returns it. local: the slice, from `starts`
    on."""

    title: str
    local: Tensor
    starts: tuple[int, ...]

    @staticmethod
    def __new__(
        cls, title: str, local: Tensor, shape: Sequence[int], starts: Sequence[int]
    ) -> "SliceOfFull":
        wrapper = Tensor._make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        wrapper.title, wrapper.local, wrapper.starts = title, local, tuple(starts)
        return wrapper

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        sliced, *others = args
        if function not in OPERATORS:
            raise WeightsError(
                f"vLLM's loader asks {sliced.title} for {function}, and this device has but a slice; {REMEDY}"
            )
        return OPERATORS[function](sliced, *others)


def _narrowed(
    sliced: SliceOfFull,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Tensor:
    """Narrow the full tensor; return a plain tensor where the slice has all of the other axes."""
    start, stop = start or 0, min(sys.maxsize if stop is None else stop, sliced.shape[axis])
    first = sliced.starts[axis]
    last = first + sliced.local.shape[axis]
    if start < first or stop > last or step != 1:
        raise WeightsError(
            f"vLLM's loader asks {sliced.title} for {start} to {stop} of axis {axis}, and there is {first} "
            f"to {last}; {REMEDY}"
        )
    local = sliced.local.narrow(axis, start - first, stop - start)
    shape = [*sliced.shape[:axis], stop - start, *sliced.shape[axis + 1 :]]
    return _wrapped(sliced, local, shape, [*sliced.starts[:axis], 0, *sliced.starts[axis + 1 :]])


def _with_axis(sliced: SliceOfFull, axis: int) -> Tensor:
    shape = [*sliced.shape[:axis], 1, *sliced.shape[axis:]]
    starts = [*sliced.starts[:axis], 0, *sliced.starts[axis:]]
    return _wrapped(sliced, sliced.local.unsqueeze(axis), shape, starts)


def _along(sliced: SliceOfFull, axis: int = 0) -> list[Tensor]:
    if sliced.local.shape[axis] != sliced.shape[axis]:
        _narrowed(sliced, axis)  # raises an error that names the missing range
    shape = [*sliced.shape[:axis], *sliced.shape[axis + 1 :]]
    starts = [*sliced.starts[:axis], *sliced.starts[axis + 1 :]]
    return [_wrapped(sliced, local, shape, starts) for local in sliced.local.unbind(axis)]


def _wrapped(sliced: SliceOfFull, local: Tensor, shape: list[int], starts: list[int]) -> Tensor:
    return local if list(local.shape) == shape else SliceOfFull(sliced.title, local, shape, starts)


OPERATORS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.detach.default: lambda sliced: sliced,
    torch.ops.aten.slice.Tensor: _narrowed,
    torch.ops.aten.unsqueeze.default: _with_axis,  # experts, one by one
    torch.ops.aten.unbind.int: _along,
}
"""The operators that loaders use, apart from shape and dtype."""
