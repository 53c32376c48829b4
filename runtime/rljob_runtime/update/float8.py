"""AdamW's moments in 8 bits: e4m3 (1 sign, 4 exponent, 3 mantissa bits) with a float32 scale per block.

`moments` calls this. Blocks are those of arXiv:2110.02861. Each step reads a moment, averages it with a
gradient and rounds it again. Rounding to nearest would leave it unchanged, since 5 % are less than half the
distance to the next value (arXiv:2603.16731). Rounding is therefore stochastic, with the right mean. The
second moment is stored as its square root, which covers twice the exponents. It never rounds to 0 from a
nonzero value, which would make a step as large as epsilon allows (arXiv:2309.01507).
"""

# B blocks, S values of a block

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
LARGEST, LEAST_NORMAL = 448.0, 2.0**-6
DROPPED_BITS = 20
"""How many of float32's 23 mantissa bits e4m3 lacks."""


@dataclass(frozen=True, slots=True)
class Float8:
    """A tensor of any shape in 8 bits.

    codes: bytes, of that shape. scales: factors that a block's values are multiplied by.
    """

    codes: Tensor
    scales: Tensor

    @classmethod
    def zeros_like(cls, tensor: Tensor) -> Self:
        """Create zeros in the tensor's shape and on its device."""
        codes = torch.zeros_like(tensor, dtype=torch.uint8)
        scales = torch.zeros(-(-tensor.numel() // BLOCK), device=tensor.device)
        return cls(codes, scales)

    def read(self, items: slice) -> Tensor:
        """Return some of the values in float32, flat. items: starts at the first item of a block."""
        values = self.codes.view(-1)[items].view(torch.float8_e4m3fn).float()
        return (_in_blocks(values) * self._scales(items)[:, None]).view(-1)[: len(values)]

    def write(self, items: slice, values: Tensor, random: torch.Generator) -> None:
        """Round values to one of their two neighbours, so that the mean is right."""
        scaled_BS = self._scaled(items, values)
        below_BS, above_BS = _neighbours(scaled_BS.abs())
        chance_BS = (scaled_BS.abs() - below_BS) / (above_BS - below_BS)
        rounded_BS = torch.where(_drawn(chance_BS, random), above_BS, below_BS)
        self._take(items, rounded_BS.copysign(scaled_BS))

    def write_root(self, items: slice, squares: Tensor, random: torch.Generator) -> None:
        """Store square roots, rounded so that the mean of their squares is right."""
        scaled_BS = self._scaled(items, squares.sqrt())
        below_BS, above_BS = _neighbours(scaled_BS)
        below_squared_BS = below_BS.square()
        chance_BS = (scaled_BS.square() - below_squared_BS) / (above_BS.square() - below_squared_BS)
        vanishes_BS = (below_BS == 0) & (scaled_BS > 0)
        upwards_BS = _drawn(chance_BS, random) | vanishes_BS
        self._take(items, torch.where(upwards_BS, above_BS, below_BS))

    def _scaled(self, items: slice, values: Tensor) -> Tensor:
        """Set the scales and return the values in blocks of at most LARGEST."""
        blocks_BS = _in_blocks(values)
        scales_B = self._scales(items)
        torch.div(blocks_BS.abs().amax(1), LARGEST, out=scales_B)
        divisor_B = torch.where(scales_B > 0, scales_B, 1.0)
        return (blocks_BS / divisor_B[:, None]).clamp(-LARGEST, LARGEST)

    def _take(self, items: slice, rounded_BS: Tensor) -> None:
        codes = self.codes.view(-1)[items]
        codes.copy_(rounded_BS.to(torch.float8_e4m3fn).view(torch.uint8).view(-1)[: len(codes)])

    def _scales(self, items: slice) -> Tensor:
        return self.scales[items.start // BLOCK : -(-items.stop // BLOCK)]


def float8_bytes(items: int) -> int:
    """Return the bytes of a tensor of so many items."""
    return items + 4 * -(-items // BLOCK)


def _in_blocks(values: Tensor) -> Tensor:
    return F.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)


def _neighbours(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the e4m3 values at or below these, and the next ones above; values in [0, LARGEST]."""
    # Subnormal values are spaced like those right above the least normal one: shifted there, both are equal.
    shift = torch.where(values < LEAST_NORMAL, LEAST_NORMAL, 0.0)
    below = (values + shift).view(torch.int32) & -(1 << DROPPED_BITS)
    above = below + (1 << DROPPED_BITS)
    return below.view(torch.float32) - shift, above.view(torch.float32) - shift


def _drawn(chances: Tensor, random: torch.Generator) -> Tensor:
    return torch.rand(chances.shape, device=chances.device, generator=random) < chances
