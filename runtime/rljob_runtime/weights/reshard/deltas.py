"""What changed between two versions of a slice's bytes, without loss, in as few bytes as it takes.

Called by `step_deltas`. Weights in bfloat16 mostly stay as they are in a step at learning rates of RL, and
those that change mostly move to the next number (docs/resharding.md has the shares). So a change is a byte:
how many 16-bit items stay before it, and up or down. What is farther away or moves farther takes three bytes
or seven.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ITEMS = 2**24
"""Items that are compared at a time: what they take on the way is small beside a bucket."""
NEAR, MEDIUM, LARGE = 127, 254, 255
"""Codes are twice the gap, below 254, and one more where the number goes down; two are escapes."""
MEDIUM_GAPS, MEDIUM_MOVES = 256, 128


class Delta(NamedTuple):
    """payload: uint8, on the device of the slice: of large changes their gaps (int32) and moves (int16), of
    medium ones theirs (uint8, int8), then the codes of all. medium, large: their numbers."""

    payload: Tensor
    changes: int
    medium: int
    large: int


def payload_bytes(changes: int, medium: int, large: int) -> int:
    """Of a delta."""
    return changes + 2 * medium + 6 * large


def encode(new: Tensor, last: Tensor) -> Delta | None:
    """What turns `last` into `new`, uint8 of one even length below 4 GiB; None where all of `new` takes fewer
    bytes."""
    to, since = new.view(torch.int16), last.view(torch.int16)
    found: list[tuple[Tensor, ...]] = []
    before, bound = -1, new.nbytes
    for first in range(0, len(to), CHUNK_ITEMS):
        a, b = since[first : first + CHUNK_ITEMS], to[first : first + CHUNK_ITEMS]
        at = (a != b).nonzero().view(-1)
        bound -= len(at)
        if bound <= 0 or len(at) > len(a) // 2:
            return None
        if len(at):
            gaps = torch.diff(at + first, prepend=at.new_tensor([before])) - 1
            found.append(_streams(gaps, b[at] - a[at]))
            before = first + int(at[-1])
    if not found:
        return Delta(new.new_empty(0), 0, 0, 0)
    streams = [torch.cat(parts) for parts in zip(*found, strict=True)]
    large_gaps, _, medium_gaps, _, codes = streams
    counts = len(codes), len(medium_gaps), len(large_gaps)
    if payload_bytes(*counts) >= new.nbytes:
        return None
    return Delta(torch.cat([each.view(torch.uint8) for each in streams]), *counts)


def decode(delta: Delta, into: Tensor) -> None:
    """Turn what `encode` was given as `last` into `new`, in place."""
    if not delta.changes:
        return
    sizes = [4 * delta.large, 2 * delta.large, delta.medium, delta.medium, delta.changes]
    parts = torch.split(delta.payload, sizes)
    types = (torch.int32, torch.int16, torch.uint8, torch.int8, torch.uint8)
    large_gaps, large_moves, medium_gaps, medium_moves, codes = (
        part.clone().view(dtype) for part, dtype in zip(parts, types, strict=True)
    )
    gaps, moves = (codes >> 1).long(), 1 - 2 * (codes & 1).to(torch.int16)
    for code, of_gaps, of_moves in (
        (MEDIUM, medium_gaps, medium_moves),
        (LARGE, large_gaps, large_moves),
    ):
        gaps[codes == code], moves[codes == code] = of_gaps.long(), of_moves.to(torch.int16)
    items = into.view(torch.int16)
    at = torch.cumsum(gaps + 1, 0) - 1
    items[at] = items[at] + moves


def _streams(gaps: Tensor, moves: Tensor) -> tuple[Tensor, ...]:
    """Of changes: gaps int64, moves int16, which wrap around as sums of bits do."""
    far = moves.int().abs()
    near = (gaps < NEAR) & (far == 1)
    medium = ~near & (gaps < MEDIUM_GAPS) & (far < MEDIUM_MOVES)
    large = ~(near | medium)
    codes = torch.where(near, 2 * gaps + (moves < 0), torch.where(medium, MEDIUM, LARGE))
    return (
        gaps[large].to(torch.int32),
        moves[large],
        gaps[medium].to(torch.uint8),
        moves[medium].to(torch.int8),
        codes.to(torch.uint8),
    )
