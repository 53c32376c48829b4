"""A model's directory that is shown pictures: a tokenizer of letters with tokens for pictures, the processor
of a Qwen2.5-VL or Qwen3-VL, and where wanted its weights; and rows for it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from vision_models import FRAMES, SIZE, make_vision_reference

NAMES = ("<|end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
TEMPLATE = (
    "{% for m in messages %}<|user|>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

KEYS = (
    "eos_token_id",
    "vision_start_token_id",
    "image_token_id",
    "vision_end_token_id",
    "video_token_id",
)


def save_picture_model(folder: Path, **processor: Any) -> PreTrainedTokenizerFast:
    """Write it. processor: settings of transformers' Qwen2VLImageProcessor."""
    letters = {sign: i for i, sign in enumerate(sorted(ByteLevel.alphabet()))}
    pieces = Tokenizer(BPE(letters, []))
    pieces.pre_tokenizer = ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=pieces, eos_token=NAMES[0], additional_special_tokens=list(NAMES[1:])
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    ids = fast.convert_tokens_to_ids(list(NAMES))
    config = dict(zip(KEYS, ids, strict=True)) | {"model_type": "qwen2_5_vl"}
    (folder / "config.json").write_text(json.dumps(config))
    Qwen2VLImageProcessorPil(**processor).save_pretrained(folder)
    return fast


def save_small_vision_model(folder: Path, family: str = "qwen2.5-vl-tied", **text: Any) -> Any:
    """The same with a random model of a few thousand weights, which sees tokens of 8 × 8 pixels; returns
    it. text: as `make_vision_reference` has it."""
    sizes = {"patch_size": SIZE, "temporal_patch_size": FRAMES, "merge_size": 2}
    fast = save_picture_model(folder, **sizes, min_pixels=8 * 8, max_pixels=32 * 32)
    model: Any = make_vision_reference(family, vocab_size=len(fast), **text)
    for key in KEYS[1:]:
        setattr(model.config, key, json.loads((folder / "config.json").read_text())[key])
    model.save_pretrained(folder)
    return model


def save_pictured_rows(folder: Path, sizes: Sequence[Sequence[tuple[int, int]]]) -> Path:
    """A JSON Lines file with a row for each of these, whose pictures have these widths and heights and each
    a colour of its own."""
    rows = []
    for number, of_row in enumerate(sizes):
        names = [f"{number}-{place}.png" for place in range(len(of_row))]
        for place, size in enumerate(of_row):
            Image.new("RGB", size, colour(number, place)).save(folder / names[place])
        prompt = f"{number}:" + "<image>" * len(of_row) + "?"
        rows.append({"prompt": prompt, "answer": "a", "images": names})
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def colour(row: int, place: int) -> tuple[int, int, int]:
    """Of a row's picture at this place."""
    return (row * 20 % 256, place * 90 % 256, 100)
