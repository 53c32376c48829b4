"""Boxes of matrices: what layouts hold and plans move. Called throughout this folder, and by the executor."""

from typing import NamedTuple

from rljob_api.model.layout import Slice
from rljob_api.model.tensors import TensorSpec


class Box(NamedTuple):
    """Rows [top, bottom) and columns [left, right). A vector is one column."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def items(self) -> int:
        """Return the number of elements; 0 for an empty box."""
        return max(0, self.bottom - self.top) * max(0, self.right - self.left)

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers of rows and columns."""
        return self.bottom - self.top, self.right - self.left

    def meet(self, other: "Box") -> "Box":
        """Return the intersection of both boxes; maybe empty."""
        return Box(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    def within(self, other: "Box") -> "Box":
        """Return the same elements with indices relative to the first element of `other`."""
        top, left = other.top, other.left
        return Box(self.top - top, self.bottom - top, self.left - left, self.right - left)


class TensorBox(NamedTuple):
    """A box of a tensor."""

    tensor: TensorSpec
    box: Box


def box_of(tensor_slice: Slice) -> Box:
    """Return a slice as a box of rows and columns."""
    size = (*tensor_slice.tensor.shape, 1)
    if tensor_slice.axis == 1:
        return Box(0, size[0], tensor_slice.start, tensor_slice.stop)
    return Box(tensor_slice.start, tensor_slice.stop, 0, size[1])
