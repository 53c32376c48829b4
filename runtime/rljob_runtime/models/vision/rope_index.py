"""Positions of three axes (Qwen2-VL, arXiv:2409.12191, §2.1), and which tokens are placeholders for pictures.

`packing` calls this. Text advances all axes alike. A picture's tokens share the time position at which it
begins, and have their row and column as height and width. Text after it continues after its largest axis.
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
class TokenPositions:
    """Positions of the tokens of a prompt or text.

    positions_N3: of tokens. pictured_P: which of them are placeholders for pictures, ascending. next:
    position of the following token, on all axes.
    """

    positions_N3: Tensor
    pictured_P: Tensor
    next: int


def batch_positions(
    batch: SampleBatch, vision: Vision
) -> tuple[list[TokenPositions], list[TokenPositions]]:
    """Return positions for each prompt and for each sample's text.

    Raises ConfigError if the tokens do not match the pictures.
    """
    prompt_pictures: list[list[Picture]] = batch.pictures or [[] for _ in batch.prompts]
    text_pictures: list[list[Picture]] = batch.text_pictures or [[] for _ in batch.texts]
    prompts = [
        token_positions(tokens == vision.picture_token, pictures, vision)
        for tokens, pictures in zip(batch.prompts, prompt_pictures, strict=True)
    ]
    drawn = batch.drawn or [torch.ones(len(text), dtype=torch.bool) for text in batch.texts]
    texts = [
        token_positions(
            (tokens == vision.picture_token) & ~is_drawn,
            pictures,
            vision,
            start=prompts[group].next,
        )
        for tokens, is_drawn, pictures, group in zip(
            batch.texts, drawn, text_pictures, batch.group_of_B.tolist(), strict=True
        )
    ]
    return prompts, texts


def token_positions(
    is_picture_N: Tensor, pictures: list[Picture], vision: Vision, *, start: int = 0
) -> TokenPositions:
    """Compute the positions of the tokens of one prompt or text.

    is_picture_N: which tokens are placeholders, in runs that the pictures fill in order; without pictures,
    such tokens count as text. start: position of the first token, on all axes.
    """
    pictured_P = is_picture_N.nonzero()[:, 0] if pictures else torch.zeros(0, dtype=torch.int64)
    counts = [picture.num_tokens(vision.merged) for picture in pictures]
    firsts = _first_tokens(pictured_P, counts, vision)
    sections, index = [], 0
    for picture, first, count in zip(pictures, firsts, counts, strict=True):
        sections.append(_text(first - index, start))
        start, index = start + first - index, first + count
        sections.append(_axes(picture.grid, vision.merged) + start)
        start += max(picture.grid[1:]) // vision.merged
    sections.append(_text(len(is_picture_N) - index, start))
    return TokenPositions(
        positions_N3=torch.cat(sections),
        pictured_P=pictured_P,
        next=start + len(is_picture_N) - index,
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
    """Return time, row and column of a picture's tokens."""
    time, height, width = grid
    axes = [torch.arange(size) for size in (time, height // merged, width // merged)]
    return torch.cartesian_prod(*axes)
