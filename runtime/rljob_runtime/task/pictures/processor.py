"""What a model makes of pictures: their size, their tokens and their patches, by its own processor.

Made of a model's directory. Prompts need sizes alone (`ids`); whoever feeds prompts scales pixels once
(`scaled`, 8 bits a number, to be moved), and a device makes patches of them (`patches`), eight times the
bytes. The processor is transformers', with Pillow behind it, whether torchvision is installed or not, so
that the same pixels come out on every machine.
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
"""Stands in a prompt's text for a picture."""
TOKEN_KEYS = ("vision_start_token_id", "image_token_id", "vision_end_token_id")

Grid = tuple[int, int, int]
"""Patches of a picture in time (always 1), height and width."""


class PictureProcessor:
    """The processor of a Qwen2-VL, Qwen2.5-VL or Qwen3-VL. image_token: its id, of which a prompt has as many
    as the language model is given vectors of pictures."""

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        """path: the model's directory. min_pixels, max_pixels: of a picture after scaling, in place of the
        model's own. Raises ConfigError."""
        self._own_tokens, self._video_token = _token_ids(path, tokenizer)
        self._processor = _load(path, min_pixels, max_pixels)
        self.image_token = self._own_tokens[1]
        self._mark = "".join(tokenizer.texts(self._own_tokens))

    def grid(self, size: tuple[int, int]) -> Grid:
        """size: width and height of a picture, as `size_of` tells them."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        own, (width, height) = self._processor, size
        found: tuple[int, int] = smart_resize(
            height,
            width,
            factor=own.patch_size * own.merge_size,
            min_pixels=own.size["shortest_edge"],
            max_pixels=own.size["longest_edge"],
        )
        return 1, found[0] // own.patch_size, found[1] // own.patch_size

    def num_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of a picture in a prompt, without those that begin and end it. size: as for `grid`."""
        frames, height, width = self.grid(size)
        return int(frames * height * width // self._processor.merge_size**2)

    def ids(
        self, text: str, sizes: Sequence[tuple[int, int]], encode: Callable[[str], list[int]]
    ) -> list[int]:
        """Ids of a prompt with a picture of each size in place of each `<image>`. encode: of the text.

        Raises ConfigError where there are more or fewer placeholders, or the text has tokens of pictures."""
        given = text.count(PLACEHOLDER)
        if given != len(sizes):
            raise ConfigError(placeholder_fault(given, len(sizes)))
        ids = encode(text.replace(PLACEHOLDER, self._mark))
        if {ids.count(token) for token in self._own_tokens} != {given} or self._video_token in ids:
            what = f"its text holds what is a token to the model, of {self._mark!r} or of a video"
            raise ConfigError(f"{what}; write {PLACEHOLDER} for a picture, and leave the rest out")
        numbers = iter([self.num_tokens(size) for size in sizes])
        expanded: list[int] = []
        for token in ids:
            expanded += [token] * (next(numbers) if token == self.image_token else 1)
        return expanded

    def scaled(self, pixels: Pixels) -> Pixels:
        """The picture as large as the model sees it, in 8 bits."""
        own = self._processor
        resized = own.resize(
            np.moveaxis(pixels, -1, 0),
            size=own.size,
            resample=own.resample,
            factor=own.patch_size * own.merge_size,
        )
        return np.ascontiguousarray(np.moveaxis(resized, 0, -1))

    def patches(self, scaled: Pixels) -> NDArray[np.float32]:
        """Normalized patches of a scaled picture, [patches, channels · frames · patch²], in the order of its
        grid, the patches of a token one after the other."""
        made = self._processor.preprocess(
            [scaled], do_resize=False, input_data_format="channels_last", return_tensors="np"
        )
        return np.asarray(made["pixel_values"], dtype=np.float32)

    def picture(self, scaled: Pixels, name: str = "") -> "Picture":
        """A scaled picture as a vision tower reads it. name: as it has it."""
        import torch

        from rljob_runtime.samples.pictures import Picture

        side = self._processor.patch_size
        height, width, _ = scaled.shape
        patches_PX = torch.from_numpy(self.patches(scaled))
        return Picture(patches_PX=patches_PX, grid=(1, height // side, width // side), name=name)


def processor_of(spec: RLJobSpec, path: Path, tokenizer: Tokenizer) -> PictureProcessor | None:
    """That of a job whose model, a directory, is shown pictures. Raises ConfigError."""
    if spec.model.vision is None:
        return None
    shown = spec.data.shown
    return PictureProcessor(
        path, tokenizer, min_pixels=shown.min_pixels, max_pixels=shown.max_pixels
    )


def placeholder_fault(given: int, pictures: int) -> str:
    """What is said of a prompt with more, or fewer, placeholders than pictures."""
    return (
        f"has {given} × {PLACEHOLDER} and {_counted(pictures)}; write {PLACEHOLDER} where each picture "
        "belongs, in the row's prompt or in spec.data.template"
    )


def _counted(pictures: int) -> str:
    return "1 picture" if pictures == 1 else f"{pictures} pictures"


def _load(path: Path, min_pixels: int | None, max_pixels: int | None) -> Any:
    """Raises ConfigError."""
    from transformers import AutoImageProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    asked = {"min_pixels": min_pixels, "max_pixels": max_pixels}
    limits = {key: value for key, value in asked.items() if value is not None}
    try:
        found = AutoImageProcessor.from_pretrained(
            path, backend="pil", local_files_only=True, **limits
        )
    except Exception as error:  # of any type, by what is spoiled
        raise ConfigError(
            f"{path} holds no processor of pictures that transformers can read ({error}); copy the model's "
            "preprocessor_config.json there"
        ) from error
    if not isinstance(found, Qwen2VLImageProcessorPil):
        raise ConfigError(
            f"{path} has the processor {type(found).__name__}; only Qwen2-VL's, which Qwen2.5-VL and "
            "Qwen3-VL use, is known"
        )
    least, most = found.size["shortest_edge"], found.size["longest_edge"]
    side = found.patch_size * found.merge_size
    if not side**2 <= least <= most:
        raise ConfigError(
            f"{path}: pictures have at least {least} and at most {most} pixels; a token has {side**2}, which "
            "is the least that either may be, and the second is no less than the first"
        )
    return found


def _token_ids(path: Path, tokenizer: Tokenizer) -> tuple[list[int], int | None]:
    """What begins a picture, stands for a part of it, and ends it; a video's. Raises ConfigError."""
    try:
        config = read_json(path / "config.json")
        if not isinstance(config, dict):
            raise ValueError(f"it is {show(config)}, no object")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}/config.json cannot be read: {error}; copy the model again"
        ) from error
    found: list[int] = []
    for key in TOKEN_KEYS:
        token = config.get(key)
        if not isinstance(token, int) or not 0 <= token < tokenizer.vocab_size:
            raise ConfigError(
                f"{path}/config.json: {key} is {show(token)}; must be an id of the tokenizer, below "
                f"{tokenizer.vocab_size}"
            )
        found.append(token)
    return found, config.get("video_token_id")
