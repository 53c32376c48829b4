"""Pictures in the form that a vision tower reads.

`SampleBatch` contains them beside the tokens that stand for them.
"""

# P patches, X values of a patch

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor


def _serialize(patches_PX: Tensor) -> str:
    content = patches_PX.to("cpu", torch.float32).contiguous().numpy().tobytes()
    return f"{patches_PX.shape[1]} {b64encode(content).decode()}"


def _deserialize(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    width, _, content = value.partition(" ")
    return torch.frombuffer(bytearray(b64decode(content)), dtype=torch.float32).view(-1, int(width))


Patches = Annotated[Tensor, PlainValidator(_deserialize), PlainSerializer(_serialize)]
"""Patches that devices exchange as JSON, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as patches. patches_PX: float, as transformers' processors produce and order them
    (`pixel_values`). grid: patches in time, height and width, whose product is P (`image_grid_thw`). name:
    equal only for the same picture, "" for one that is shown once."""

    patches_PX: Patches
    grid: tuple[int, int, int]
    name: str = ""

    def __post_init__(self) -> None:
        time, height, width = self.grid
        assert time * height * width == len(self.patches_PX), (
            f"a picture of {len(self.patches_PX)} patches has no grid {self.grid}"
        )

    def num_tokens(self, merged: int) -> int:
        """Return the number of tokens that stand for the picture. merged: patches of a side that become
        one."""
        time, height, width = self.grid
        return time * (height // merged) * (width // merged)
