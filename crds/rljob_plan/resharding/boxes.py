"""Boxes of matrices: what layouts hold and plans move. Called throughout this folder, and by who executes."""

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
        """Number of elements; 0 where it is empty."""
        return max(0, self.bottom - self.top) * max(0, self.right - self.left)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.bottom - self.top, self.right - self.left

    def meet(self, other: "Box") -> "Box":
        """What is in both; maybe empty."""
        return Box(
            max(self.top, other.top),
            min(self.bottom, other.bottom),
            max(self.left, other.left),
            min(self.right, other.right),
        )

    def within(self, other: "Box") -> "Box":
        """The same elements, counted from the first of `other`."""
        top, left = other.top, other.left
        return Box(self.top - top, self.bottom - top, self.left - left, self.right - left)


class Piece(NamedTuple):
    """A box of a tensor."""

    tensor: TensorSpec
    box: Box


def box_of(piece: Slice) -> Box:
    """A slice as a box."""
    size = (*piece.tensor.shape, 1)
    if piece.axis == 1:
        return Box(0, size[0], piece.start, piece.stop)
    return Box(piece.start, piece.stop, 0, size[1])
