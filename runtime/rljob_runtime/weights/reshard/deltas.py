"""Encode the changes between two versions of a slice's bytes, without loss, in few bytes.

Called by `step_deltas`. Weights in bfloat16 mostly stay the same in a step at learning rates of RL. Those
that change mostly move to the next number (docs/resharding.md has the shares). So a change is a byte: how
many 16-bit items stay before it, and up or down. A larger gap or move takes three bytes or seven.
"""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_ITEMS = 2**24
"""The number of items compared at a time; the temporary memory is small compared to a bucket."""
NEAR, MEDIUM, LARGE = 127, 254, 255
"""A code is twice the gap, below 254, plus one where the number decreases; two codes are escapes."""
MEDIUM_GAPS, MEDIUM_MOVES = 256, 128


class Delta(NamedTuple):
    """The encoded changes. payload: uint8, on the device of the slice: gaps (int32) and moves (int16) of
    large changes, those of medium ones (uint8, int8), then the codes of all. medium, large: their numbers."""

    payload: Tensor
    changes: int
    medium: int
    large: int


def payload_bytes(changes: int, medium: int, large: int) -> int:
    """Return the bytes of a delta."""
    return changes + 2 * medium + 6 * large


def encode(new: Tensor, last: Tensor) -> Delta | None:
    """Return the changes from `last` to `new`, uint8 of one even length below 4 GiB; None where all of `new`
    takes fewer bytes."""
    new_items, last_items = new.view(torch.int16), last.view(torch.int16)
    chunks: list[tuple[Tensor, ...]] = []
    before, bound = -1, new.nbytes
    for first in range(0, len(new_items), CHUNK_ITEMS):
        last_chunk, new_chunk = (
            last_items[first : first + CHUNK_ITEMS],
            new_items[first : first + CHUNK_ITEMS],
        )
        changed = (last_chunk != new_chunk).nonzero().view(-1)
        bound -= len(changed)
        if bound <= 0 or len(changed) > len(last_chunk) // 2:
            return None
        if len(changed):
            gaps = torch.diff(changed + first, prepend=changed.new_tensor([before])) - 1
            chunks.append(_streams(gaps, new_chunk[changed] - last_chunk[changed]))
            before = first + int(changed[-1])
    if not chunks:
        return Delta(new.new_empty(0), 0, 0, 0)
    streams = [torch.cat(stream_chunks) for stream_chunks in zip(*chunks, strict=True)]
    large_gaps, _, medium_gaps, _, codes = streams
    counts = len(codes), len(medium_gaps), len(large_gaps)
    if payload_bytes(*counts) >= new.nbytes:
        return None
    return Delta(torch.cat([each.view(torch.uint8) for each in streams]), *counts)


def decode(delta: Delta, into: Tensor) -> None:
    """Turn the `last` of `encode` into its `new`, in place."""
    if not delta.changes:
        return
    sizes = [4 * delta.large, 2 * delta.large, delta.medium, delta.medium, delta.changes]
    streams = torch.split(delta.payload, sizes)
    types = (torch.int32, torch.int16, torch.uint8, torch.int8, torch.uint8)
    large_gaps, large_moves, medium_gaps, medium_moves, codes = (
        stream.clone().view(dtype) for stream, dtype in zip(streams, types, strict=True)
    )
    gaps, moves = (codes >> 1).long(), 1 - 2 * (codes & 1).to(torch.int16)
    for code, of_gaps, of_moves in (
        (MEDIUM, medium_gaps, medium_moves),
        (LARGE, large_gaps, large_moves),
    ):
        gaps[codes == code], moves[codes == code] = of_gaps.long(), of_moves.to(torch.int16)
    items = into.view(torch.int16)
    changed = torch.cumsum(gaps + 1, 0) - 1
    items[changed] = items[changed] + moves


def _streams(gaps: Tensor, moves: Tensor) -> tuple[Tensor, ...]:
    """Return the streams of changes: gaps int64, moves int16, which wrap around as sums of bits do."""
    distance = moves.int().abs()
    near = (gaps < NEAR) & (distance == 1)
    medium = ~near & (gaps < MEDIUM_GAPS) & (distance < MEDIUM_MOVES)
    large = ~(near | medium)
    codes = torch.where(near, 2 * gaps + (moves < 0), torch.where(medium, MEDIUM, LARGE))
    return (
        gaps[large].to(torch.int32),
        moves[large],
        gaps[medium].to(torch.uint8),
        moves[medium].to(torch.int8),
        codes.to(torch.uint8),
    )
