"""How blocks apply their matrices: the seam where tensor-parallel ranks differ from one device.

A block applies column-cut matrices, whose rows (output features) ranks may share, and row-cut ones, whose
columns they may share. This file has the single-device version; `parallelize.tensor` has the parallel one.
"""

# U packed tokens, X features

from typing import Protocol

from torch import Tensor

from rljob_runtime.models.blocks.matrix import Matrix


class Linears(Protocol):
    """Applies the matrices of a block.

    Between its matrices, a block has all tokens and some features; outside of them, some tokens and all
    features.
    """

    def columns(self, x_UX: Tensor, *matrices: Matrix) -> tuple[Tensor, ...]:
        """Apply several column-cut matrices to one input."""
        ...

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """Apply a row-cut matrix to its input features."""
        ...

    def all_tokens(self, x_UX: Tensor) -> Tensor:
        """Return for all tokens what an uncut matrix computed for some of them.

        The result has the tokens of a column-cut matrix's output.
        """
        ...


class WholeLinears:
    """Linears of one device, where matrices and tokens are not split."""

    def columns(self, x_UX: Tensor, *matrices: Matrix) -> tuple[Tensor, ...]:
        """Apply each full matrix to the input."""
        return tuple(matrix(x_UX) for matrix in matrices)

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """Apply the full matrix to the input."""
        output: Tensor = matrix(x_UX)
        return output

    def all_tokens(self, x_UX: Tensor) -> Tensor:
        """Return the input unchanged, since it already has all tokens."""
        return x_UX
