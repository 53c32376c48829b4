"""Convert pictures for a model: their size, their tokens and their patches, by the model's own processor.

Created from a model's directory. Prompts need only sizes (`ids`). The feeder of prompts scales pixels
once (`scaled`, 8 bits per value), and a device makes patches from them (`patches`), which are eight times
larger. The processor is transformers' variant on Pillow, whether torchvision is installed or not, so that
every machine computes the same pixels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.spec.json_text import read_json
from rljob_api.spec.messages import show
from rljob_api.spec.rljob import RLJobSpec
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.pictures.picture import Pixels
from rljob_runtime.task.tokenizer import Tokenizer

if TYPE_CHECKING:
    from rljob_runtime.samples.pictures import Picture

PLACEHOLDER = "<image>"
"""Placeholder for a picture in a prompt's text."""
TOKEN_KEYS = ("vision_start_token_id", "image_token_id", "vision_end_token_id")

Grid = tuple[int, int, int]
"""Number of patches of a picture in time (always 1), height and width."""


class PictureProcessor:
    """The processor of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL. image_token: its id; a prompt has one for
    each picture vector that the language model receives."""

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        """Load the processor. path: the model's directory. min_pixels, max_pixels: of a picture after
        scaling, replacing the model's own. Raises ConfigError."""
        self._picture_tokens, self._video_token = _token_ids(path, tokenizer)
        self._processor = _load(path, min_pixels, max_pixels)
        self.image_token = self._picture_tokens[1]
        self._mark = "".join(tokenizer.texts(self._picture_tokens))

    def grid(self, size: tuple[int, int]) -> Grid:
        """Return the grid of a picture. size: width and height of a picture, as `size_of` returns
        them."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        processor, (width, height) = self._processor, size
        resized: tuple[int, int] = smart_resize(
            height,
            width,
            factor=processor.patch_size * processor.merge_size,
            min_pixels=processor.size["shortest_edge"],
            max_pixels=processor.size["longest_edge"],
        )
        return 1, resized[0] // processor.patch_size, resized[1] // processor.patch_size

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Return the number of a picture's tokens in a prompt, without those that begin and end it.
        size: as for `grid`."""
        frames, height, width = self.grid(size)
        return int(frames * height * width // self._processor.merge_size**2)

    def ids(
        self, text: str, sizes: Sequence[tuple[int, int]], encode: Callable[[str], list[int]]
    ) -> list[int]:
        """Return the ids of a prompt with a picture of each size in place of each `<image>`. encode:
        encodes the text.

        Raises ConfigError if there are more or fewer placeholders, or if the text contains tokens of
        pictures.
        """
        num_placeholders = text.count(PLACEHOLDER)
        if num_placeholders != len(sizes):
            raise ConfigError(placeholder_fault(num_placeholders, len(sizes)))
        ids = encode(text.replace(PLACEHOLDER, self._mark))

        if {ids.count(token) for token in self._picture_tokens} != {
            num_placeholders
        } or self._video_token in ids:
            fault = f"its text holds what is a token to the model, of {self._mark!r} or of a video"
            raise ConfigError(f"{fault}; write {PLACEHOLDER} for a picture, and leave the rest out")
        numbers = iter([self.num_tokens(size) for size in sizes])
        expanded: list[int] = []
        for token in ids:
            expanded += [token] * (next(numbers) if token == self.image_token else 1)
        return expanded

    def scaled(self, pixels: Pixels) -> Pixels:
        """Return the picture in the size that the model sees, with 8 bits per value."""
        processor = self._processor
        resized = processor.resize(
            np.moveaxis(pixels, -1, 0),
            size=processor.size,
            resample=processor.resample,
            factor=processor.patch_size * processor.merge_size,
        )
        return np.ascontiguousarray(np.moveaxis(resized, 0, -1))

    def patches(self, scaled: Pixels) -> NDArray[np.float32]:
        """Return the normalized patches of a scaled picture, [patches, channels · frames · patch²].
        They are in the order of its grid, with the patches of a token one after the other."""
        features = self._processor.preprocess(
            [scaled], do_resize=False, input_data_format="channels_last", return_tensors="np"
        )
        return np.asarray(features["pixel_values"], dtype=np.float32)

    def picture(self, scaled: Pixels, name: str = "") -> "Picture":
        """Return a scaled picture as a vision tower's input. name: that of the picture."""
        import torch

        from rljob_runtime.samples.pictures import Picture

        side = self._processor.patch_size
        height, width, _ = scaled.shape
        patches_PX = torch.from_numpy(self.patches(scaled))
        return Picture(patches_PX=patches_PX, grid=(1, height // side, width // side), name=name)


def processor_of(spec: RLJobSpec, path: Path, tokenizer: Tokenizer) -> PictureProcessor | None:
    """Return the processor of a job whose model, a directory, is shown pictures; None for others.
    Raises ConfigError."""
    if spec.model.vision is None:
        return None
    shown = spec.data.shown
    return PictureProcessor(
        path, tokenizer, min_pixels=shown.min_pixels, max_pixels=shown.max_pixels
    )


def placeholder_fault(marks: int, pictures: int) -> str:
    """Return the message for a prompt with more, or fewer, placeholders than pictures."""
    return (
        f"has {marks} × {PLACEHOLDER} and {_counted(pictures)}; write {PLACEHOLDER} where each picture "
        "belongs, in the row's prompt or in spec.data.template"
    )


def _counted(pictures: int) -> str:
    return "1 picture" if pictures == 1 else f"{pictures} pictures"


def _load(path: Path, min_pixels: int | None, max_pixels: int | None) -> Any:
    """Load the model's processor of pictures. Raises ConfigError if there is no suitable one."""
    from transformers import AutoImageProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    options = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    limits = {key: value for key, value in options.items() if value is not None}
    try:
        processor = AutoImageProcessor.from_pretrained(
            path, backend="pil", local_files_only=True, **limits
        )
    except Exception as error:  # its type depends on the damage
        raise ConfigError(
            f"{path} holds no processor of pictures that transformers can read ({error}); copy the model's "
            "preprocessor_config.json there"
        ) from error
    if not isinstance(processor, Qwen2VLImageProcessorPil):
        raise ConfigError(
            f"{path} has the processor {type(processor).__name__}; only Qwen2-VL's, which Qwen2.5-VL and "
            "Qwen3-VL use, is known"
        )
    least, most = processor.size["shortest_edge"], processor.size["longest_edge"]
    side = processor.patch_size * processor.merge_size
    if not side**2 <= least <= most:
        raise ConfigError(
            f"{path}: pictures have at least {least} and at most {most} pixels; a token has {side**2}, which "
            "is the least that either may be, and the second is no less than the first"
        )
    return processor


def _token_ids(path: Path, tokenizer: Tokenizer) -> tuple[list[int], int | None]:
    """Return the tokens that begin a picture, represent a part of it, and end it; and a video's token.
    Raises ConfigError."""
    try:
        config = read_json(path / "config.json")
        if not isinstance(config, dict):
            raise ValueError(f"it is {show(config)}, no object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}/config.json cannot be read: {error}; copy the model again"
        ) from error
    ids: list[int] = []
    for key in TOKEN_KEYS:
        token = config.get(key)
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            raise ConfigError(
                f"{path}/config.json: {key} is {show(token)}; must be an id of the tokenizer, below "
                f"{tokenizer.vocab_size}"
            )
        ids.append(token)
    return ids, config.get("video_token_id")
