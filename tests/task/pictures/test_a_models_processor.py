"""What becomes of pictures and prompts equals what transformers' own processor of the model makes of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_models import NAMES, save_picture_model
from transformers import AutoImageProcessor
from transformers.models.qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen3_vl import Qwen3VLProcessor

from rljob_runtime.errors import ConfigError
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import HFTokenizer

QWEN2_5 = {"patch_size": 14, "min_pixels": 4 * 28**2, "max_pixels": 20 * 28**2}
QWEN3 = {
    "patch_size": 16,
    "size": {"shortest_edge": 4 * 32**2, "longest_edge": 24 * 32**2},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
FAMILIES = [(QWEN2_5, Qwen2_5_VLProcessor), (QWEN3, Qwen3VLProcessor)]
SIZES = [(1, 1), (70, 30), (30, 70), (200, 1), (3, 3), (5, 3), (3, 5), (640, 480), (99, 100)]
"""Width and height. Sides of 1 and 3 are where colours could be taken for a side."""


def theirs(folder: Path, kind: type, tokenizer: object) -> Any:
    """Transformers' processor; its class of videos needs torchvision, and is not looked at."""

    def check(self: object, name: str, argument: object) -> None:
        assert name != "video_processor" or argument is None

    without_videos = type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})
    pictures = AutoImageProcessor.from_pretrained(folder, backend="pil")
    return without_videos(image_processor=pictures, tokenizer=tokenizer)


def noise(size: tuple[int, int]) -> np.ndarray:
    width, height = size
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ours(folder: Path, **limits: int) -> tuple[PictureProcessor, HFTokenizer]:
    tokenizer = HFTokenizer(folder)
    return PictureProcessor(folder, tokenizer, **limits), tokenizer


@pytest.mark.parametrize(("settings", "kind"), FAMILIES)
def test_patches_and_grids_are_those_of_transformers_in_every_bit(tmp_path, settings, kind):
    reference = theirs(tmp_path, kind, save_picture_model(tmp_path, **settings))
    processor, _ = ours(tmp_path)

    for size in SIZES:
        made = reference.image_processor(
            images=[noise(size)], input_data_format="channels_last", return_tensors="np"
        )
        scaled = processor.scaled(noise(size))
        assert scaled.dtype == np.uint8
        assert np.array_equal(processor.patches(scaled), made["pixel_values"])
        assert processor.grid(size) == tuple(made["image_grid_thw"][0])
        assert np.array_equal(processor.scaled(noise(size)), scaled)


@pytest.mark.parametrize(("settings", "kind"), FAMILIES)
@pytest.mark.parametrize("sizes", [[], [(70, 30)], [(640, 480), (1, 1), (30, 70)]])
def test_prompts_have_the_tokens_that_transformers_gives_them(tmp_path, settings, kind, sizes):
    tokenizer = save_picture_model(tmp_path, **settings)
    reference = theirs(tmp_path, kind, tokenizer)
    processor, own = ours(tmp_path)
    texts = [f"and {place}:" for place in range(len(sizes) + 1)]
    parts = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    message = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )

    made = reference(
        text=[message],
        images=[noise(size) for size in sizes] or None,
        images_kwargs={"input_data_format": "channels_last"},
    )

    ids = processor.ids("<image>".join(texts), sizes, own.chat)
    assert ids == made["input_ids"][0]
    assert ids.count(processor.image_token) == sum(map(processor.num_tokens, sizes))


def test_a_prompt_without_a_chat_template_has_its_pictures_where_they_stand(tmp_path):
    tokenizer = save_picture_model(tmp_path, **QWEN2_5)
    processor, own = ours(tmp_path)

    ids = processor.ids("one <image>", [(56, 56)], own.encode)

    letters = tokenizer.encode("one ")
    assert ids == [
        *letters,
        *tokenizer.convert_tokens_to_ids([NAMES[1], *[NAMES[2]] * 4, NAMES[3]]),
    ]


def test_limits_of_the_job_go_before_those_of_the_model(tmp_path):
    save_picture_model(tmp_path, **QWEN3)
    own, few, many = (
        ours(tmp_path, **limits)[0]
        for limits in ({}, {"max_pixels": 6 * 32**2}, {"min_pixels": 12 * 32**2})
    )

    assert own.num_tokens((640, 480)) == 20
    assert few.num_tokens((640, 480)) == 4
    assert own.num_tokens((64, 64)) == 4
    assert many.num_tokens((64, 64)) == 16
    assert few.scaled(noise((640, 480))).shape == (64, 64, 3)
    assert few.patches(few.scaled(noise((640, 480)))).shape == (16, 3 * 2 * 16 * 16)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"min_pixels": 100}, "at least 100 and at most 24576 pixels; a token has 1024"),
        ({"max_pixels": 2048}, "at least 4096 and at most 2048 pixels"),
    ],
)
def test_limits_that_no_picture_can_keep_are_refused(tmp_path, limits, said):
    save_picture_model(tmp_path, **QWEN3)

    with pytest.raises(ConfigError, match=said):
        ours(tmp_path, **limits)


@pytest.mark.parametrize(
    ("text", "sizes", "said"),
    [
        ("none", [(9, 9)], "has 0 × <image> and 1 picture;"),
        ("<image> <image>", [(9, 9)], "has 2 × <image> and 1 picture;"),
        ("<image>", [], "has 1 × <image> and 0 pictures;"),
        ("<image> <|image_pad|>", [(9, 9)], "its text holds what is a token to the model"),
        ("<|vision_start|> <image>", [(9, 9)], "its text holds what is a token to the model"),
        ("<|image_pad|>", [], "its text holds what is a token to the model"),
        ("<|video_pad|>", [], "its text holds what is a token to the model"),
    ],
)
def test_as_many_pictures_as_placeholders_and_no_tokens_of_pictures_beside(
    tmp_path, text, sizes, said
):
    save_picture_model(tmp_path, **QWEN2_5)
    processor, own = ours(tmp_path)

    with pytest.raises(ConfigError, match=said):
        processor.ids(text, sizes, own.encode)


def test_a_directory_without_a_processor_or_its_tokens_is_named(tmp_path):
    save_picture_model(tmp_path, **QWEN2_5)
    own = HFTokenizer(tmp_path)
    config, pictures = tmp_path / "config.json", tmp_path / "preprocessor_config.json"
    tokens = config.read_text()

    def refused(said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            PictureProcessor(tmp_path, own)

    config.write_text(tokens.replace('"image_token_id"', '"image"'))
    refused(r"config\.json: image_token_id is None; must be an id of the tokenizer, below 261")
    config.write_text(tokens.replace("}", ', "vision_end_token_id": 261}'))
    refused(r"config\.json: vision_end_token_id is 261; must be an id")
    config.write_text("{")
    refused(r"config\.json cannot be read")
    config.write_text(tokens)
    pictures.write_text('{"image_processor_type": "ViTImageProcessor"}')
    refused("has the processor ViTImageProcessorPil; only Qwen2-VL's")
    pictures.unlink()
    refused(r"copy the model's preprocessor_config\.json there")
