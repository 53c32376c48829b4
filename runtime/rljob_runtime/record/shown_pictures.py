"""Small pictures of the prompts in a step's event, encoded again from pixels.

Metadata and other content of the data's own files therefore never reaches a log or a page. Called by the
reward worker of jobs with pictures, once per group.
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
"""Pixels of the longer side; smaller pictures are not scaled."""
GROUP_BYTES = 16 * 1024
"""Limit for a group's pictures in the event, in base64. The pictures of 200 steps, as many as a report shows,
are at most 10 MB."""
MOST_PICTURES = 8
"""Pictures of a group that are shown; the event has only the size of the others."""
SIDES = (MOST_SIDE, 128, 64, 32)
QUALITIES = (85, 60, 35)

Format = Literal["png", "jpeg"]


def shown_pictures(pictures: Sequence[NDArray[np.uint8]]) -> list[ShownPicture]:
    """Encode the pictures of a prompt for the event. pictures: RGB, [height, width, 3]."""
    max_bytes = GROUP_BYTES // max(1, min(len(pictures), MOST_PICTURES))
    return [
        _encode(pixels, max_bytes if index < MOST_PICTURES else 0)
        for index, pixels in enumerate(pictures)
    ]


def _encode(pixels: NDArray[np.uint8], max_bytes: int) -> ShownPicture:
    height, width, _ = pixels.shape
    for side in SIDES if max_bytes else ():
        small = Image.fromarray(pixels)
        small.thumbnail((side, side))
        for format, content in _encodings(small):
            if len(content) <= max_bytes:
                return ShownPicture(width=width, height=height, format=format, content=content)
    return ShownPicture(width=width, height=height)


def _encodings(small: Image.Image) -> Iterator[tuple[Format, str]]:
    """Yield the picture as the shorter of PNG and JPEG, then as JPEG of decreasing quality."""
    best = _base64(small, "jpeg", quality=QUALITIES[0])
    exact = _base64(small, "png", optimize=True)
    yield ("png", exact) if len(exact) <= len(best) else ("jpeg", best)
    for quality in QUALITIES[1:]:
        yield "jpeg", _base64(small, "jpeg", quality=quality)


def _base64(small: Image.Image, format: Format, **options: int) -> str:
    file = io.BytesIO()
    small.save(file, format, **options)
    return base64.b64encode(file.getvalue()).decode()
