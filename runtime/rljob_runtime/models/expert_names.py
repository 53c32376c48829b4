"""Translate between single experts and stacks of all experts, by Hugging Face name.

Files hold `experts.7.gate_proj.weight` and the like; modules (ours and transformers') and some files hold all
experts of a layer in `experts.gate_up_proj` and `experts.down_proj`. Code that reads or writes names of a
model's tensors calls this.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, Self, TypeVar

import torch

GATE_UP, DOWN = ".experts.gate_up_proj", ".experts.down_proj"
CORRECTION_BIAS = ".e_score_correction_bias"

StackIndex = tuple[int, slice]
"""An expert's number in a stack, and its rows there."""


class SupportsSlicing(Protocol):
    """A tensor, or an object that can be sliced like one."""

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the tensor."""
        ...

    def __getitem__(self, index: Any, /) -> Self:
        """Return a view of some items."""
        ...


SlicedTensor = TypeVar("SlicedTensor", bound=SupportsSlicing)


def split_experts(
    weights: Iterable[tuple[str, SlicedTensor]], *, first: int = 0
) -> Iterator[tuple[str, SlicedTensor]]:
    """Yield the same weights with stacks as views of single experts, under the names of files.

    first: number of a stack's first expert.
    """
    for name, tensor in weights:
        indices = stack_indices(name, tensor.shape, first=first)
        if indices is None:
            yield name, tensor
        else:
            yield from ((expert_name, tensor[index]) for expert_name, index in indices)


def stack_indices(
    name: str, shape: Sequence[int], *, first: int = 0
) -> list[tuple[str, StackIndex]] | None:
    """Return the names of the single experts in a stack and their indices there; None if it is no stack.

    first: number of the stack's first expert.
    """
    if name.endswith(GATE_UP):
        count, rows = shape[0], shape[1] // 2
        rows_of_matrix = {"gate_proj": slice(0, rows), "up_proj": slice(rows, 2 * rows)}
    elif name.endswith(DOWN):
        count, rows_of_matrix = shape[0], {"down_proj": slice(0, shape[1])}
    else:
        return None
    stem = name.rpartition(".")[0]
    return [
        (f"{stem}.{first + index}.{matrix}.weight", (index, rows))
        for index in range(count)
        for matrix, rows in rows_of_matrix.items()
    ]


def weight_dtype(name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a weight in a model of this dtype: float32 for a router's correction bias."""
    return torch.float32 if name.endswith(CORRECTION_BIAS) else dtype
