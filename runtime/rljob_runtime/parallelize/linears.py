"""The matrices of blocks where tensor ranks share them, with sequence parallel tokens.

Set on the blocks by `policy`; the form of one device is `models.blocks.linears`.
"""

# S tokens of one rank, U of all tensor ranks, X features

from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.parallel.sequence import gather_rows
from rljob_runtime.parallel.tensor import column_linear, row_linear


class SharedLinears:
    """A `Linears`: outside of its matrices a block has S tokens, between them U. group: tensor ranks."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group

    def columns(self, x_SX: Tensor, *matrices: Matrix) -> tuple[Tensor, ...]:
        """[S, X] → [U, this rank's rows] each; the tokens are gathered once."""
        weights = [matrix.weight for matrix in matrices]
        return column_linear(x_SX, weights, [matrix.bias for matrix in matrices], self._group)

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """[U, this rank's columns] → [S, rows]."""
        return row_linear(x_UX, matrix.weight, matrix.bias, self._group)

    def all_tokens(self, x_SX: Tensor) -> Tensor:
        """[S, X] → [U, X]."""
        return gather_rows(x_SX, self._group)
