"""The pieces that one device gives in a step, end to end in bytes. Called by `step_collectives` and `shared`.

A parcel is bytes, as the pieces of a step may have two types; those of the wider type come first, so that
every piece begins at a multiple of its type's size.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_runtime.models.expert_names import weight_dtype

View = Callable[[TensorBox], Tensor]
"""A piece of this device's weights, in their own type."""


class Parcel:
    """sent: type on the way of all but what decides between experts."""

    def __init__(self, pieces: Sequence[TensorBox], sent: torch.dtype) -> None:
        types = [(piece, weight_dtype(piece.tensor.name, sent)) for piece in pieces]
        self._pieces = sorted(types, key=lambda pair: -pair[1].itemsize)
        self.num_bytes = sum(piece.box.items * dtype.itemsize for piece, dtype in types)

    def views(self, flat: Tensor) -> Iterator[tuple[TensorBox, Tensor]]:
        """Each piece with its place. flat: uint8 [num_bytes]."""
        first = 0
        for piece, dtype in self._pieces:
            size = piece.box.items * dtype.itemsize
            place = flat[first : first + size].view(dtype)
            yield piece, place.view(piece.box.size[: len(piece.tensor.shape)])
            first += size

    def fill(self, flat: Tensor, own: View) -> None:
        """Lay the pieces there."""
        for piece, place in self.views(flat):
            place.copy_(own(piece), non_blocking=True)


def part(tensor: Tensor, held: Box, box: Box) -> Tensor:
    """A view of a box of a tensor. held: the box that `tensor` is."""
    inside = box.within(held)
    rows = tensor[inside.top : inside.bottom]
    return rows if tensor.ndim == 1 else rows[:, inside.left : inside.right]
