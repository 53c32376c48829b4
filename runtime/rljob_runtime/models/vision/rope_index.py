"""Positions of three axes (Qwen2-VL, arXiv:2409.12191, §2.1), and which tokens stand for pictures.

Called by `packing`. Text counts on all axes alike; a picture's tokens stand where it begins in time, and by
their row and column in height and width; what follows goes on behind the largest of its axes.
"""

# N tokens of a prompt or of a text behind one, P those that stand for pictures

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Vision
from rljob_runtime.samples.pictures import Picture
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """positions_N3: of tokens. pictured_P: which of them stand for pictures, ascending. next: position of the
    token behind them, on all axes."""

    positions_N3: Tensor
    pictured_P: Tensor
    next: int


def place_batch(batch: SampleBatch, vision: Vision) -> tuple[list[Placed], list[Placed]]:
    """Of each prompt, and of each sample's text. Raises ConfigError where tokens and pictures do not fit."""
    shown: list[list[Picture]] = batch.pictures or [[] for _ in batch.prompts]
    text_shown: list[list[Picture]] = batch.text_pictures or [[] for _ in batch.texts]
    prompts = [
        place_tokens(tokens == vision.picture_token, pictures, vision)
        for tokens, pictures in zip(batch.prompts, shown, strict=True)
    ]
    drawn = batch.drawn or [torch.ones(len(text), dtype=torch.bool) for text in batch.texts]
    texts = [
        place_tokens(
            (tokens == vision.picture_token) & ~own, pictures, vision, start=prompts[group].next
        )
        for tokens, own, pictures, group in zip(
            batch.texts, drawn, text_shown, batch.group_of_B.tolist(), strict=True
        )
    ]
    return prompts, texts


def place_tokens(
    stands_N: Tensor, pictures: list[Picture], vision: Vision, *, start: int = 0
) -> Placed:
    """stands_N: which tokens stand for pictures, in runs that these fill in order; where there are none, such
    tokens count as text. start: position of the first token, on all axes."""
    pictured_P = stands_N.nonzero()[:, 0] if pictures else torch.zeros(0, dtype=torch.int64)
    counts = [picture.num_tokens(vision.merged) for picture in pictures]
    firsts = _first_tokens(pictured_P, counts, vision)
    parts, place = [], 0
    for picture, first, count in zip(pictures, firsts, counts, strict=True):
        parts.append(_text(first - place, start))
        start, place = start + first - place, first + count
        parts.append(_axes(picture.grid, vision.merged) + start)
        start += max(picture.grid[1:]) // vision.merged
    parts.append(_text(len(stands_N) - place, start))
    return Placed(
        positions_N3=torch.cat(parts),
        pictured_P=pictured_P,
        next=start + len(stands_N) - place,
    )


def _first_tokens(pictured_P: Tensor, counts: list[int], vision: Vision) -> list[int]:
    runs = torch.split(pictured_P, counts) if len(pictured_P) == sum(counts) else ()
    if len(runs) == len(counts) and all(int(run[-1] - run[0]) == len(run) - 1 for run in runs):
        return [int(run[0]) for run in runs]
    raise ConfigError(
        f"{len(pictured_P)} tokens {vision.picture_token} (image_token_id in config.json) do not stand for "
        f"{len(counts)} pictures of {', '.join(map(str, counts))} tokens; each picture needs a run of so many"
    )


def _text(count: int, start: int) -> Tensor:
    return torch.arange(start, start + count)[:, None].expand(-1, 3)


def _axes(grid: tuple[int, int, int], merged: int) -> Tensor:
    """Time, row and column of a picture's tokens."""
    time, height, width = grid
    axes = [torch.arange(size) for size in (time, height // merged, width // merged)]
    return torch.cartesian_prod(*axes)
