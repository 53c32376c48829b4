"""Matrices of blocks that tensor ranks share, with sequence parallel tokens.

`policy` sets them on the blocks; the form for one device is `models.blocks.linears`.
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
        """Multiply by matrices sharded by rows, [S, X] → [U, this rank's rows] each; the tokens are gathered
        once."""
        weights = [matrix.weight for matrix in matrices]
        outputs = column_linear(x_SX, weights, [matrix.bias for matrix in matrices], self._group)
        adapter_outputs = (self._column_adapter(x_SX, matrix) for matrix in matrices)
        return tuple(
            y if adapter_y is None else y + adapter_y
            for y, adapter_y in zip(outputs, adapter_outputs, strict=True)
        )

    def rows(self, x_UX: Tensor, matrix: Matrix) -> Tensor:
        """Multiply by a matrix sharded by columns, [U, this rank's columns] → [S, rows]."""
        output_SX = row_linear(x_UX, matrix.weight, matrix.bias, self._group)
        if matrix.adapter is None:
            return output_SX
        lora_a, lora_b = matrix.adapter  # A has this rank's columns, B is full
        narrow_SX = row_linear(x_UX, lora_a.weight, None, self._group)
        added_SX: Tensor = lora_b(matrix.lora_scale * narrow_SX)
        return output_SX + added_SX

    def _column_adapter(self, x_SX: Tensor, matrix: Matrix) -> Tensor | None:
        """Multiply by an adapter, [S, X] → [U, this rank's rows]: A is full, and its outputs for a rank's
        tokens are gathered."""
        if matrix.adapter is None:
            return None
        lora_a, lora_b = matrix.adapter
        narrow_SX = matrix.lora_scale * lora_a(x_SX)
        return column_linear(narrow_SX, [lora_b.weight], [None], self._group)[0]

    def all_tokens(self, x_SX: Tensor) -> Tensor:
        """All-gather the tokens, [S, X] → [U, X]."""
        return gather_rows(x_SX, self._group)
