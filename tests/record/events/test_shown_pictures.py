"""What a step's event shows of a prompt's pictures: their pixels, made anew and bounded in bytes."""

import base64
import io
from random import Random

import numpy as np
import pytest
from PIL import Image

from rljob_runtime.record.event_types import ShownPicture
from rljob_runtime.record.shown_pictures import shown_pictures
from rljob_runtime.task.pictures.drawing import draw

GROUP_BYTES = 16 * 1024


def noise(height: int, width: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def opened(shown: ShownPicture) -> Image.Image:
    assert shown.content is not None
    image = Image.open(io.BytesIO(base64.b64decode(shown.content, validate=True)))
    assert (image.format or "").lower() == shown.format
    return image.convert("RGB")


def test_a_small_picture_of_few_colours_is_shown_to_the_pixel() -> None:
    pixels = np.array(draw(Random(3), task="count", level=2, side=56).image)

    [shown] = shown_pictures([pixels])

    assert (shown.width, shown.height, shown.format) == (56, 56, "png")
    assert (np.array(opened(shown)) == pixels).all()


@pytest.mark.parametrize("size", [(600, 900), (256, 3), (1, 200), (2000, 10)])
def test_a_large_picture_is_shown_small_in_its_proportions(size: tuple[int, int]) -> None:
    [shown] = shown_pictures([np.full((*size, 3), (200, 40, 10), dtype=np.uint8)])

    image = opened(shown)
    assert (shown.height, shown.width) == size
    assert max(image.size) == min(256, max(size))
    assert image.width / image.height == pytest.approx(size[1] / size[0], abs=1 / min(image.size))
    assert np.abs(np.array(image).astype(int) - (200, 40, 10)).max() <= 3


@pytest.mark.parametrize("number", [1, 3, 8, 11])
def test_pictures_of_a_group_keep_within_its_bytes_and_the_first_eight_are_shown(number) -> None:
    shown = shown_pictures([noise(400, 300)] * number)

    assert [(each.width, each.height) for each in shown] == [(300, 400)] * number
    assert [each.content is not None for each in shown] == [place < 8 for place in range(number)]
    assert sum(len(each.content or "") for each in shown) <= GROUP_BYTES
    assert all(max(opened(each).size) >= 32 for each in shown[:8])
