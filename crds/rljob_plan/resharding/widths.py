"""Bytes of what is held and sent. Called by `plan` with boxes, and by `memory` with slices."""

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
    """Bytes of an item in either layout. int8: whether the rollout layout's matrices are in 8 bits.

    What goes from device to device has the narrower of both types; what decides between experts is
    float32 everywhere.
    """

    update: int
    rollout: int
    int8: bool = False

    def held_to_train(self, tensor: TensorSpec) -> int:
        """Bytes of an item of the update layout."""
        return FLOAT32_BYTES if tensor.name.endswith(CORRECTION_BIAS) else self.update

    def sent(self, tensor: TensorSpec) -> int:
        """Bytes of an item on its way."""
        if tensor.name.endswith(CORRECTION_BIAS):
            return FLOAT32_BYTES
        return min(self.update, self.rollout)

    def held_to_generate(self, tensor: TensorSpec, size: tuple[int, ...]) -> int:
        """Bytes of a part of a tensor in the rollout layout."""
        if self.int8 and in_8_bits(tensor):
            return int8_bytes(size)
        item = FLOAT32_BYTES if tensor.name.endswith(CORRECTION_BIAS) else self.rollout
        return prod(size) * item


def in_8_bits(tensor: TensorSpec) -> bool:
    """Whether quantization takes it: a layer's matrix that is no router."""
    return tensor.layer is not None and len(tensor.shape) > 1 and not tensor.name.endswith(ROUTER)


def int8_bytes(size: tuple[int, ...]) -> int:
    """A matrix in 8 bits with a scale a row."""
    return prod(size) + SCALE_BYTES * size[0]
