"""Slices for vLLM's weight loaders, which expect whole tensors and keep a rank's part of each.

Called by `rollout_vllm`. A loader asks a tensor for its shape, narrows it to what its rank holds, and copies
that; so it is given a tensor of the whole shape, behind which there is the rank's slice alone.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_runtime.errors import WeightsError

REMEDY = "use spec.resharding.strategy: stream"


def as_whole(piece: TensorBox, held: Tensor) -> Tensor:
    """A tensor of the shape of the piece's, of which the piece can be read. held: the piece's values."""
    whole = piece.tensor.shape
    if held.shape == torch.Size(whole):
        return held
    starts = (piece.box.top, piece.box.left)[: len(whole)]
    return SliceOfWhole(piece.tensor.name, held, whole, starts)


class SliceOfWhole(Tensor):
    """What `as_whole` gives of a tensor that is cut. held: what is there, from `starts` on."""

    title: str
    held: Tensor
    starts: tuple[int, ...]

    @staticmethod
    def __new__(
        cls, title: str, held: Tensor, shape: Sequence[int], starts: Sequence[int]
    ) -> "SliceOfWhole":
        made = Tensor._make_wrapper_subclass(cls, shape, dtype=held.dtype, device=held.device)
        made.title, made.held, made.starts = title, held, tuple(starts)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        own, *others = args
        if function not in ANSWERS:
            raise WeightsError(
                f"vLLM's loader asks {own.title} for {function}, and this device has but a slice; {REMEDY}"
            )
        return ANSWERS[function](own, *others)


def _narrowed(
    own: SliceOfWhole,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Tensor:
    """Of the whole tensor; a tensor of its own where the slice has all of the other axes."""
    start, stop = start or 0, min(sys.maxsize if stop is None else stop, own.shape[axis])
    first = own.starts[axis]
    last = first + own.held.shape[axis]
    if start < first or stop > last or step != 1:
        raise WeightsError(
            f"vLLM's loader asks {own.title} for {start} to {stop} of axis {axis}, and there is {first} "
            f"to {last}; {REMEDY}"
        )
    held = own.held.narrow(axis, start - first, stop - start)
    shape = [*own.shape[:axis], stop - start, *own.shape[axis + 1 :]]
    return _made(own, held, shape, [*own.starts[:axis], 0, *own.starts[axis + 1 :]])


def _with_axis(own: SliceOfWhole, axis: int) -> Tensor:
    shape = [*own.shape[:axis], 1, *own.shape[axis:]]
    starts = [*own.starts[:axis], 0, *own.starts[axis:]]
    return _made(own, own.held.unsqueeze(axis), shape, starts)


def _along(own: SliceOfWhole, axis: int = 0) -> list[Tensor]:
    if own.held.shape[axis] != own.shape[axis]:
        _narrowed(own, axis)  # says what is missing
    shape = [*own.shape[:axis], *own.shape[axis + 1 :]]
    starts = [*own.starts[:axis], *own.starts[axis + 1 :]]
    return [_made(own, held, shape, starts) for held in own.held.unbind(axis)]


def _made(own: SliceOfWhole, held: Tensor, shape: list[int], starts: list[int]) -> Tensor:
    return held if list(held.shape) == shape else SliceOfWhole(own.title, held, shape, starts)


ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.detach.default: lambda own: own,
    torch.ops.aten.slice.Tensor: _narrowed,
    torch.ops.aten.unsqueeze.default: _with_axis,  # experts, one by one
    torch.ops.aten.unbind.int: _along,
}
"""What loaders ask for, beside shape and type."""
