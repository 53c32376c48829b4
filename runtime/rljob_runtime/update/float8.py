"""AdamW's moments in 8 bits: e4m3 (1 sign, 4 exponent, 3 mantissa bits) with a float32 scale a block.

Called by `moments`. Blocks are those of arXiv:2110.02861. A moment is read, averaged with a gradient and
rounded again in every step: rounded to nearest it would stand still, as 5 % are less than half the distance
to the next value (arXiv:2603.16731), so that rounding is by chance, with the right mean. Of the second moment
the square root is held, which spans twice the exponents; it never becomes 0 where it was not, which would
make a step as large as epsilon allows (arXiv:2309.01507).
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
"""Of float32's 23 bits behind the point, those that e4m3 has not."""


@dataclass(frozen=True, slots=True)
class Float8:
    """A tensor of any shape. codes: bytes, of that shape. scales: what a block's values are multiplied by."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def zeros_like(cls, tensor: Tensor) -> Self:
        """Of the tensor's shape, on its device."""
        codes = torch.zeros_like(tensor, dtype=torch.uint8)
        scales = torch.zeros(-(-tensor.numel() // BLOCK), device=tensor.device)
        return cls(codes, scales)

    def read(self, items: slice) -> Tensor:
        """Some of the values in float32, flat. items: from a block's first on."""
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
        """Hold square roots, rounded so that the mean of their squares is right."""
        scaled_BS = self._scaled(items, squares.sqrt())
        below_BS, above_BS = _neighbours(scaled_BS)
        below_squared_BS = below_BS.square()
        chance_BS = (scaled_BS.square() - below_squared_BS) / (above_BS.square() - below_squared_BS)
        vanishes_BS = (below_BS == 0) & (scaled_BS > 0)
        upwards_BS = _drawn(chance_BS, random) | vanishes_BS
        self._take(items, torch.where(upwards_BS, above_BS, below_BS))

    def _scaled(self, items: slice, values: Tensor) -> Tensor:
        """Blocks of at most LARGEST; the scales are kept."""
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
    """Bytes of a tensor of so many items."""
    return items + 4 * -(-items // BLOCK)


def _in_blocks(values: Tensor) -> Tensor:
    return F.pad(values, (0, -len(values) % BLOCK)).view(-1, BLOCK)


def _neighbours(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values that e4m3 has below or at these, and the next ones; values in [0, LARGEST]."""
    # Below the least normal one, values lie as far apart as right above it: shifted there, they are alike.
    shift = torch.where(values < LEAST_NORMAL, LEAST_NORMAL, 0.0)
    below = (values + shift).view(torch.int32) & -(1 << DROPPED_BITS)
    above = below + (1 << DROPPED_BITS)
    return below.view(torch.float32) - shift, above.view(torch.float32) - shift


def _drawn(chances: Tensor, random: torch.Generator) -> Tensor:
    return torch.rand(chances.shape, device=chances.device, generator=random) < chances
