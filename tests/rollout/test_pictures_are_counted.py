"""What a share of prompts says of its pictures."""

from types import SimpleNamespace
from typing import Any

from rljob_runtime.record.reports import PictureFigures
from rljob_runtime.worker.generate import picture_figures

IMAGE = 7


def test_pictures_count_once_a_prompt_and_their_tokens_with_each_sample() -> None:
    reader: Any = SimpleNamespace(processor=SimpleNamespace(image_token=IMAGE))
    prompts = [([1, IMAGE, IMAGE, 2, IMAGE], 2, 4), ([1, 2], 0, 4), ([IMAGE], 1, 3)]

    assert picture_figures(reader, prompts) == PictureFigures(pictures=3, tokens=3 * 4 + 3)
    assert picture_figures(None, prompts) is None
