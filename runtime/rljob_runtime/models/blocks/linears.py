"""How blocks compute their matrices: the place where a rank's share of a layer differs from the whole.

A block asks for column-cut matrices, whose rows (output features) ranks may share, and row-cut ones, whose
columns they may share. Here is the form of one device; `parallelize.tensor` has that of several.
"""

# U packed tokens, X features

from typing import Protocol

from torch import Tensor

from rljob_runtime.models.blocks.matrix import Matrix


class Linears(Protocol):
    """Between its matrices a block has all tokens and some of the features; outside of them some of
    the tokens and all features."""

    def columns(self, x_UX: Tensor, *matrices: Matrix) -> tuple[Tensor, ...]:
        """Column-cut matrices on one input."""
        ...

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """A row-cut matrix."""
        ...

    def all_tokens(self, x_UX: Tensor) -> Tensor:
        """What a whole matrix made of some tokens, of all that a column-cut one gives."""
        ...


class WholeLinears:
    """Matrices and tokens are whole."""

    def columns(self, x_UX: Tensor, *matrices: Matrix) -> tuple[Tensor, ...]:
        """See Linears."""
        return tuple(matrix(x_UX) for matrix in matrices)

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """See Linears."""
        output: Tensor = matrix(x_UX)
        return output

    def all_tokens(self, x_UX: Tensor) -> Tensor:
        """See Linears."""
        return x_UX
