"""Pictures as a vision tower reads them.

Carried by `SampleBatch` beside the tokens that stand for them.
"""

# P patches, X values of a patch

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import PlainSerializer, PlainValidator
from torch import Tensor


def _written(patches_PX: Tensor) -> str:
    content = patches_PX.to("cpu", torch.float32).contiguous().numpy().tobytes()
    return f"{patches_PX.shape[1]} {b64encode(content).decode()}"


def _read(given: Any) -> Tensor:
    if isinstance(given, Tensor):
        return given
    width, _, content = given.partition(" ")
    return torch.frombuffer(bytearray(b64decode(content)), dtype=torch.float32).view(-1, int(width))


Patches = Annotated[Tensor, PlainValidator(_read), PlainSerializer(_written)]
"""Patches that devices tell each other as JSON, in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """patches_PX: float, as transformers' processors make and order them (`pixel_values`). grid: patches in
    time, height and width, whose product is P (`image_grid_thw`). name: the same for
    the same picture alone, "" for one that is shown once."""

    patches_PX: Patches
    grid: tuple[int, int, int]
    name: str = ""

    def __post_init__(self) -> None:
        time, height, width = self.grid
        assert time * height * width == len(self.patches_PX), (
            f"a picture of {len(self.patches_PX)} patches has no grid {self.grid}"
        )

    def num_tokens(self, merged: int) -> int:
        """Tokens that stand for it. merged: patches of a side that become one."""
        time, height, width = self.grid
        return time * (height // merged) * (width // merged)
