"""Adapters on their way to the rollout layout: what a device gives is merged, piece by piece.

Called by the executor and the checks for each piece of a plan; no second copy of the weights is ever whole.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.lora import adapted_matrices, merge_adapter
from rljob_runtime.parallel.fully_sharded import held_rows, whole_weight

Merge = Callable[[TensorBox, Tensor], Tensor]
"""What is given of a piece, from this device's frozen values of it."""


def as_trained(piece: TensorBox, values: Tensor) -> Tensor:
    """Weights that are trained themselves."""
    return values


class AdapterMerge:
    """A `Merge` of a decoder with adapters. held: box of each slice of this device, by name."""

    def __init__(self, decoder: Decoder, held: Mapping[str, Box]) -> None:
        self._held, self._matrices = held, adapted_matrices(decoder)
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}

    def refresh(self) -> None:
        """Take the adapters as they are now; before each reshard, by all ranks that share weights by ZeRO 3
        together, which gather A: its rows are not those of the weight."""
        for name, matrix in self._matrices.items():
            assert matrix.lora_A is not None and matrix.lora_B is not None
            lora_a = whole_weight(matrix.lora_A.weight.detach())
            self._factors[name] = lora_a, held_rows(matrix.lora_B.weight.detach())

    def __call__(self, piece: TensorBox, values: Tensor) -> Tensor:
        """A new tensor where the matrix has an adapter."""
        name = piece.tensor.name
        if (matrix := self._matrices.get(name)) is None:
            return values
        lora_a, lora_b = self._factors[name]
        inside = piece.box.within(self._held[name])
        return merge_adapter(
            values,
            lora_a[:, inside.left : inside.right],
            lora_b[inside.top : inside.bottom],
            matrix.lora_scale,
        )
