"""Matrices of a fused decoder, in the engine's dtype or in 8 bits.

Blocks call `wide` on them in each product. Only matrices of layers are in 8 bits: no embedding, head, norm,
bias or router, and no activation. Quantization is symmetric, with a float32 scale for each output feature,
rounded to nearest.
"""

# O output features, I input features; experts have one more dim in front

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST = 127

Widest = Callable[[Tensor], Tensor]
"""Maximum over all shards of the largest value in their columns of a matrix, [..., O] -> [..., O]."""


@dataclass(frozen=True, slots=True)
class Int8Weights:
    """A matrix in 8 bits with a scale for each output feature.

    values: int8 [..., O, I]. scales: float32 [..., O]. widest: maximum over shards, so that all round alike.
    """

    values: Tensor
    scales: Tensor
    widest: Widest

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the matrix."""
        return self.values.shape

    def __getitem__(self, index: Any) -> "Int8Weights":
        """Return some experts or some output features, sharing memory."""
        return Int8Weights(self.values[index], self.scales[index], self.widest)

    def copy_(self, source: Tensor, /) -> None:
        """Round a matrix of any float dtype into this one."""
        matrix = source.detach().to(self.scales.device, torch.float32)
        scales = self.widest(matrix.abs().amax(-1)).clamp_(min=torch.finfo().tiny) / LARGEST
        self.scales.copy_(scales)
        self.values.copy_((matrix / scales[..., None]).round_().clamp_(-LARGEST, LARGEST))

    def wide(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix that the values represent: a copy that lives for one product."""
        return (self.values * self.scales[..., None]).to(dtype)


Weights = Tensor | Int8Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFactory:
    """Creates uninitialised weights in the engine's dtype and on its device."""

    dtype: torch.dtype
    device: str
    int8: bool = False

    def __call__(self, *shape: int) -> Tensor:
        """Create a tensor that is never in 8 bits."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def matrix(self, *shape: int, widest: Widest | None = None) -> Weights:
        """Create a matrix of a layer, [..., O, I]. widest: required if shards split its columns."""
        if not self.int8:
            return self(*shape)
        values = torch.empty(shape, dtype=torch.int8, device=self.device)
        scales = torch.empty(shape[:-1], dtype=torch.float32, device=self.device)
        return Int8Weights(values, scales, widest or _unshared)


def wide(weights: Weights, dtype: torch.dtype) -> Tensor:
    """Return the matrix in a dtype that can be multiplied with."""
    return weights.wide(dtype) if isinstance(weights, Int8Weights) else weights


def split_rows(weights: Weights, sizes: Iterable[int]) -> Iterator[Weights]:
    """Yield the output features of the matrices that are stored in one."""
    start = 0
    for size in sizes:
        yield weights[start : start + size]
        start += size


def floats(weights: Mapping[str, Weights]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights by name, none of which is in 8 bits."""
    for name, weight in weights.items():
        assert isinstance(weight, Tensor), (
            f"{name} is held in 8 bits, of which nobody has a checksum"
        )
        yield name, weight


def tensors_in(weights: Iterable[Weights]) -> Iterator[Tensor]:
    """Yield the tensors that take memory."""
    for weight in weights:
        yield from (weight.values, weight.scales) if isinstance(weight, Int8Weights) else (weight,)


def _unshared(values: Tensor) -> Tensor:
    return values
