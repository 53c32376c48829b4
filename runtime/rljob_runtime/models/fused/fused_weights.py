"""Matrices that a fused decoder holds: as they are, or in 8 bits.

Called by the blocks, which take `wide` of them in each product. Only what layers multiply with is in 8
bits: no embedding, head, norm, bias or router, and no activation. Symmetric, with a float32 scale for each
output feature, rounded to nearest.
"""

# O output features, I input features; experts have one more dim in front

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST = 127

Widest = Callable[[Tensor], Tensor]
"""Largest of what all parts of a model found in their columns of a matrix, [..., O] -> [..., O]."""


@dataclass(frozen=True, slots=True)
class Int8Weights:
    """values: int8 [..., O, I]. scales: float32 [..., O]. widest: so that parts round alike."""

    values: Tensor
    scales: Tensor
    widest: Widest

    @property
    def shape(self) -> torch.Size:
        """Of the matrix."""
        return self.values.shape

    def __getitem__(self, place: Any) -> "Int8Weights":
        """Some experts, or some output features; shares memory."""
        return Int8Weights(self.values[place], self.scales[place], self.widest)

    def copy_(self, source: Tensor, /) -> None:
        """Round a matrix of any float type."""
        found = source.detach().to(self.scales.device, torch.float32)
        scales = self.widest(found.abs().amax(-1)).clamp_(min=torch.finfo().tiny) / LARGEST
        self.scales.copy_(scales)
        self.values.copy_((found / scales[..., None]).round_().clamp_(-LARGEST, LARGEST))

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The matrix that the values stand for; a copy that lives for one product."""
        return (self.values * self.scales[..., None]).to(dtype)


Weights = Tensor | Int8Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """Makes uninitialised weights in the engine's type and on its device."""

    dtype: torch.dtype
    device: str
    int8: bool = False

    def __call__(self, *shape: int) -> Tensor:
        """A tensor that stays as it is."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def matrix(self, *shape: int, widest: Widest | None = None) -> Weights:
        """A matrix of a layer, [..., O, I]. widest: where parts share its columns."""
        if not self.int8:
            return self(*shape)
        values = torch.empty(shape, dtype=torch.int8, device=self.device)
        scales = torch.empty(shape[:-1], dtype=torch.float32, device=self.device)
        return Int8Weights(values, scales, widest or _own)


def wide(weights: Weights, dtype: torch.dtype) -> Tensor:
    """The matrix to multiply with."""
    return weights.wide(dtype) if isinstance(weights, Int8Weights) else weights


def split_rows(weights: Weights, sizes: Iterable[int]) -> Iterator[Weights]:
    """Output features of the matrices that lie in one."""
    start = 0
    for size in sizes:
        yield weights[start : start + size]
        start += size


def floats(weights: Mapping[str, Weights]) -> Iterator[tuple[str, Tensor]]:
    """Weights none of which is in 8 bits."""
    for name, held in weights.items():
        assert isinstance(held, Tensor), f"{name} is held in 8 bits, of which nobody has a checksum"
        yield name, held


def tensors_in(weights: Iterable[Weights]) -> Iterator[Tensor]:
    """What takes memory."""
    for held in weights:
        yield from (held.values, held.scales) if isinstance(held, Int8Weights) else (held,)


def _own(found: Tensor) -> Tensor:
    return found
