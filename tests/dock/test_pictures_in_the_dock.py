"""Pictures of prompts in the dock: stored once a group, read once a group, and bit for bit what transformers'
processor makes of them."""

from pathlib import Path

import numpy as np
from picture_models import save_picture_model
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.samples.flow import PICTURE_COLUMNS
from rljob_runtime.task.pictures.picture import Pixels
from rljob_runtime.task.pictures.picture_columns import PictureReader, picture_columns, pixels_in
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import HFTokenizer
from rljob_runtime.worker.samples import read_samples
from rljob_runtime.worker.shared_reading import pack, unpack

GRAPH = StateGraph(states=(State(name="update", needs=("prompt", "response", *PICTURE_COLUMNS)),))
SETTINGS = {"patch_size": 4, "min_pixels": 8 * 8, "max_pixels": 64 * 64}


def noise(height: int, width: int) -> Pixels:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


GROUPS = [[noise(37, 50)], [], [noise(16, 16), noise(200, 90)]]
SAMPLES = 3


def rows(processor: PictureProcessor) -> list[NewRow]:
    return [
        NewRow(
            uid=f"{number}/{sample}",
            group=str(number),
            group_index=number,
            columns={"response": np.arange(sample + 1, dtype=np.int32)},
            group_columns={
                "prompt": np.arange(number + 1, dtype=np.int32),
                **picture_columns([processor.scaled(picture) for picture in pictures]),
            },
        )
        for number, pictures in enumerate(GROUPS)
        for sample in range(SAMPLES)
    ]


def test_pictures_go_through_the_dock_once_a_group(make_dock, tmp_path: Path) -> None:
    save_picture_model(tmp_path, **SETTINGS)
    processor = PictureProcessor(tmp_path, HFTokenizer(tmp_path))
    dock, put = make_dock(graph=GRAPH), rows(processor)
    feed, update = dock.client("feed"), dock.client("update")
    feed.put_rows("train/1", put, total=len(put))
    claim = update.claim("train/1", share=(0, 1), timeout_seconds=10)
    stored = sum(row.group_columns["pixels"].nbytes for row in put[::SAMPLES])
    update.take_traffic()

    samples = read_samples(update, claim.rows, fields=(), pictures=PictureReader(processor))

    assert [len(shown) for shown in samples.pictures] == [1, 0, 2]
    assert stored <= update.take_traffic().bytes_read.total() < stored + 1000
    theirs = Qwen2VLImageProcessorPil.from_pretrained(tmp_path)
    for pictures, shown in zip(GROUPS, unpack(pack(samples)).pictures, strict=True):
        for pixels, picture in zip(pictures, shown, strict=True):
            made = theirs([Image.fromarray(pixels)], return_tensors="np")
            assert picture.grid == tuple(made["image_grid_thw"][0])
            assert np.array_equal(picture.patches_PX.numpy(), made["pixel_values"])


def test_a_picture_has_one_name_in_whatever_group_and_no_other_picture_has_it(
    tmp_path: Path,
) -> None:
    save_picture_model(tmp_path, **SETTINGS)
    reader = PictureReader(PictureProcessor(tmp_path, HFTokenizer(tmp_path)))
    white, brighter = np.full((16, 32, 3), 254, np.uint8), np.full((16, 32, 3), 254, np.uint8)
    brighter[15, 31, 2] = 255
    turned = white.reshape(32, 16, 3)

    alone = reader.make_pictures(picture_columns([white]))
    among = reader.make_pictures(picture_columns([brighter, turned, white]))

    assert alone[0].name == among[2].name != ""
    assert len({picture.name for picture in among}) == 3


def test_columns_of_a_prompt_without_pictures_are_empty() -> None:
    columns = picture_columns([])

    assert {name: (len(values), str(values.dtype)) for name, values in columns.items()} == {
        "pixels": (0, "uint8"),
        "picture_sizes": (0, "int32"),
    }
    assert pixels_in(columns) == []
