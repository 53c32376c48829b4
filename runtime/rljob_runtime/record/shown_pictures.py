"""Small pictures of the prompts that a step's event shows: made anew of pixels, so that nothing of the data's
own files, neither metadata nor what else they hold, reaches a log or a page.

Called by the reward worker of jobs with pictures, once a group.
"""

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rljob_runtime.record.event_types import ShownPicture

MOST_SIDE = 256
"""Pixels of the longer side; a smaller picture stays as it is."""
GROUP_BYTES = 16 * 1024
"""Of a group's pictures in the event, in base64: pictures of 200 steps, as many as a report shows, are 10 MB
at most."""
MOST_PICTURES = 8
"""Of a group that are shown; of others the event has the size alone."""
SIDES = (MOST_SIDE, 128, 64, 32)
QUALITIES = (85, 60, 35)

Format = Literal["png", "jpeg"]


def shown_pictures(pictures: Sequence[NDArray[np.uint8]]) -> list[ShownPicture]:
    """Of each picture of a prompt what is shown of it. pictures: RGB, [height, width, 3]."""
    room = GROUP_BYTES // max(1, min(len(pictures), MOST_PICTURES))
    return [
        _shown(pixels, room if place < MOST_PICTURES else 0)
        for place, pixels in enumerate(pictures)
    ]


def _shown(pixels: NDArray[np.uint8], room: int) -> ShownPicture:
    height, width, _ = pixels.shape
    for side in SIDES if room else ():
        small = Image.fromarray(pixels)
        small.thumbnail((side, side))
        for format, content in _written(small):
            if len(content) <= room:
                return ShownPicture(width=width, height=height, format=format, content=content)
    return ShownPicture(width=width, height=height)


def _written(small: Image.Image) -> Iterator[tuple[Format, str]]:
    """The picture as the shorter of PNG and JPEG, then as ever worse JPEG."""
    best = _base64(small, "jpeg", quality=QUALITIES[0])
    exact = _base64(small, "png", optimize=True)
    yield ("png", exact) if len(exact) <= len(best) else ("jpeg", best)
    for quality in QUALITIES[1:]:
        yield "jpeg", _base64(small, "jpeg", quality=quality)


def _base64(small: Image.Image, format: Format, **options: int) -> str:
    file = io.BytesIO()
    small.save(file, format, **options)
    return base64.b64encode(file.getvalue()).decode()
