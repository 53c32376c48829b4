"""The pieces that one device sends in a step, concatenated as bytes. Called by `step_collectives` and
`shared`.

A parcel is bytes, as the pieces of a step may have two types. Those of the wider type come first, so that
every piece begins at a multiple of its type's size.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_runtime.models.expert_names import weight_dtype

LocalView = Callable[[TensorBox], Tensor]
"""Returns the view of a piece in this device's weights, in their own type."""


class Parcel:
    """The pieces of one sender. sent: type in transit of all weights but the router's."""

    def __init__(self, pieces: Sequence[TensorBox], sent: torch.dtype) -> None:
        types = [(region, weight_dtype(region.tensor.name, sent)) for region in pieces]
        self._pieces = sorted(types, key=lambda pair: -pair[1].itemsize)
        self.num_bytes = sum(region.box.items * dtype.itemsize for region, dtype in types)

    def views(self, flat: Tensor) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield each piece with its view of the buffer. flat: uint8 [num_bytes]."""
        first = 0
        for region, dtype in self._pieces:
            size = region.box.items * dtype.itemsize
            target = flat[first : first + size].view(dtype)
            yield region, target.view(region.box.size[: len(region.tensor.shape)])
            first += size

    def fill(self, flat: Tensor, local_view: LocalView) -> None:
        """Copy the local pieces into the buffer."""
        for region, target in self.views(flat):
            target.copy_(local_view(region), non_blocking=True)


def box_view(tensor: Tensor, tensor_box: Box, box: Box) -> Tensor:
    """Return a view of a box of a tensor. tensor_box: the box of `tensor` itself."""
    inside = box.within(tensor_box)
    rows = tensor[inside.top : inside.bottom]
    return rows if tensor.ndim == 1 else rows[:, inside.left : inside.right]
