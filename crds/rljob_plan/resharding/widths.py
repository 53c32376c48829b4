"""Count the bytes of what is held and sent. Called by `resharding_plan` with boxes, and by `memory` with
slices."""

from dataclasses import dataclass
from math import prod

from rljob_api.model.tensors import TensorSpec
from rljob_api.spec.engines import Dtype

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
SCALE_BYTES = 4
FLOAT32_BYTES = 4
ROUTER = ".mlp.gate.weight"
CORRECTION_BIAS = ".e_score_correction_bias"


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes of an item in either layout. int8: the rollout layout's matrices are in 8 bits.

    Weights in transit have the narrower of both types. The router's correction bias is float32 everywhere.
    """

    update: int
    rollout: int
    int8: bool = False

    def update_item_bytes(self, tensor: TensorSpec) -> int:
        """Return the bytes of an item of the update layout."""
        return FLOAT32_BYTES if tensor.name.endswith(CORRECTION_BIAS) else self.update

    def sent(self, tensor: TensorSpec) -> int:
        """Return the bytes of an item in transit."""
        if tensor.name.endswith(CORRECTION_BIAS):
            return FLOAT32_BYTES
        return min(self.update, self.rollout)

    def rollout_bytes(self, tensor: TensorSpec, size: tuple[int, ...]) -> int:
        """Return the bytes of a slice of a tensor in the rollout layout."""
        if self.int8 and in_8_bits(tensor):
            return int8_bytes(size)
        item = FLOAT32_BYTES if tensor.name.endswith(CORRECTION_BIAS) else self.rollout
        return prod(size) * item


def in_8_bits(tensor: TensorSpec) -> bool:
    """Return whether quantization applies: to a layer's matrix that is not a router."""
    return tensor.layer is not None and len(tensor.shape) > 1 and not tensor.name.endswith(ROUTER)


def int8_bytes(size: tuple[int, ...]) -> int:
    """Return the bytes of a matrix in 8 bits with one scale per row."""
    return prod(size) + SCALE_BYTES * size[0]
