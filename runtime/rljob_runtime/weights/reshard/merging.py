"""Merge adapters on the way to the rollout layout, piece by piece.

Called by the executor and the checks for each piece of a plan; no full second copy of the weights ever
exists.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.lora import adapted_matrices, merge_adapter
from rljob_runtime.parallel.fully_sharded import full_weight, local_rows

Merge = Callable[[TensorBox, Tensor], Tensor]
"""Returns the values to send of a piece, from this device's frozen values of it."""


def as_trained(region: TensorBox, values: Tensor) -> Tensor:
    """Return weights that are trained directly, unchanged."""
    return values


class AdapterMerge:
    """A `Merge` of a decoder with adapters. boxes: of each slice of this device, by name."""

    def __init__(self, decoder: Decoder, boxes: Mapping[str, Box]) -> None:
        self._boxes, self._matrices = boxes, adapted_matrices(decoder)
        self._factors: dict[str, tuple[Tensor, Tensor]] = {}

    def refresh(self) -> None:
        """Read the current adapters; called before each reshard. All ranks that share weights by ZeRO 3 call
        it together and gather A, since its rows are not those of the weight."""
        for name, matrix in self._matrices.items():
            assert matrix.lora_A is not None and matrix.lora_B is not None
            lora_a = full_weight(matrix.lora_A.weight.detach())
            self._factors[name] = lora_a, local_rows(matrix.lora_B.weight.detach())

    def __call__(self, region: TensorBox, values: Tensor) -> Tensor:
        """Return a new tensor where the matrix has an adapter, else the values."""
        name = region.tensor.name
        if (matrix := self._matrices.get(name)) is None:
            return values
        lora_a, lora_b = self._factors[name]
        inside = region.box.within(self._boxes[name])
        return merge_adapter(
            values,
            lora_a[:, inside.left : inside.right],
            lora_b[inside.top : inside.bottom],
            matrix.lora_scale,
        )
