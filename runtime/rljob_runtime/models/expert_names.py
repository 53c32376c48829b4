"""Experts one by one, and the stacks that they are kept in, by Hugging Face name.

Files hold `experts.7.gate_proj.weight` and its like; modules (ours and transformers') and some files
hold all experts of a layer in `experts.gate_up_proj` and `experts.down_proj`. Called wherever names
leave or enter a model.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch

GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"
CORRECTION_BIAS = ".e_score_correction_bias"

Place = tuple[int, slice]
"""An expert, and rows of its matrix in a stack."""


class Sliced(Protocol):
    """A tensor, or what stands for one."""

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        ...

    def __getitem__(self, place: Any, /) -> Self:
        """A view."""
        ...


Held = TypeVar("Held", bound=Sliced)


def split_experts(
    weights: Iterable[tuple[str, Held]], *, first: int = 0
) -> Iterator[tuple[str, Held]]:
    """The same weights with stacks as views of single experts, under the names of files.

    first: number of a stack's first expert.
    """
    for name, tensor in weights:
        places = places_in_stack(name, tensor.shape, first=first)
        if places is None:
            yield name, tensor
        else:
            yield from ((part, tensor[place]) for part, place in places)


def places_in_stack(
    name: str, shape: Sequence[int], *, first: int = 0
) -> list[tuple[str, Place]] | None:
    """Names of the single experts in a stack, numbered from `first`, and where they lie; None if
    `name` is no stack's."""
    if name.endswith(GATE_UP):
        count, rows = shape[0], shape[1] // 2
        parts = {"gate_proj": slice(0, rows), "up_proj": slice(rows, 2 * rows)}
    elif name.endswith(DOWN):
        count, parts = shape[0], {"down_proj": slice(0, shape[1])}
    else:
        return None
    stem = name.rpartition(".")[0]
    return [
        (f"{stem}.{first + index}.{part}.weight", (index, rows))
        for index in range(count)
        for part, rows in parts.items()
    ]


def held_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """The type of a weight in a model of this type: float32 for what decides between experts."""
    return torch.float32 if name.endswith(CORRECTION_BIAS) else dtype
