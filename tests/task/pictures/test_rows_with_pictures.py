"""Rows with pictures: what becomes of them, and what is said of those that cannot be used before anything
starts."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from picture_models import save_picture_model
from PIL import Image

from rljob_api.spec.workload import Batch, Data
from rljob_runtime.errors import ConfigError, PictureError
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.pictures.picture import pixels_of
from rljob_runtime.task.pictures.processor import PictureProcessor
from rljob_runtime.task.tokenizer import ByteTokenizer, HFTokenizer

SETTINGS = {"patch_size": 14, "min_pixels": 28**2, "max_pixels": 16 * 28**2}


def png(colour: Any = "red", size: tuple[int, int] = (56, 28)) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, colour).save(stream, "PNG")
    return stream.getvalue()


def uri(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def row(prompt: str = "<image> which colour?", **keys: Any) -> dict[str, Any]:
    return {"prompt": prompt, "answer": "red", **keys}


def data_of(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> Data:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Data.model_validate({"jsonl": {"path": str(folder / "rows.jsonl")}, **keys})


def source_of(folder: Path, data: Data, *, longest: int = 200, held_out: int = 0) -> PromptSource:
    model = folder / "model"
    model.mkdir()
    save_picture_model(model, **SETTINGS)
    tokenizer = HFTokenizer(model)
    sizes = {"global_batch_size": 2, "samples_per_prompt": 2, "max_response_length": 8}
    return PromptSource(
        data,
        batch=Batch(max_prompt_length=longest, **sizes),
        tokenizer=tokenizer,
        seed=1,
        base_dir=folder,
        held_out=held_out,
        processor=PictureProcessor(model, tokenizer),
    )


def fault_of(folder: Path, *rows: dict[str, Any], tower: bool = True, **keys: Any) -> str:
    data = data_of(folder, list(rows), **keys)
    (problem,) = data_problems(data, base_dir=folder, tower=tower)
    return str(problem)


def test_a_prompt_has_its_pictures_by_path_or_in_the_row_and_their_tokens(tmp_path):
    rows = [row(images=["red.png"]), row("<image><image>?", images=[uri(png("blue")), uri(png())])]
    data = data_of(tmp_path / "data", rows, template="{question} In one word:")
    (tmp_path / "data" / "red.png").write_bytes(png())

    assert data_problems(data, base_dir=tmp_path, tower=True) == []
    source = source_of(tmp_path, data)
    one, two = sorted(source.train(1), key=lambda prompt: len(prompt.pictures))

    (image,) = HFTokenizer(tmp_path / "model").continuation("<|image_pad|>")
    assert one.text == "<image> which colour? In one word:"
    assert [p.token_ids.count(image) for p in (one, two)] == [2, 4]
    assert [pixels_of(picture)[0, 0].tolist() for picture in two.pictures] == [
        [0, 0, 255],
        [255, 0, 0],
    ]
    assert pixels_of(one.pictures[0]).shape == (28, 56, 3)
    assert "images" not in one.entry and one.entry["answer"] == "red"


def test_a_row_without_pictures_is_a_prompt_of_text(tmp_path):
    source = source_of(
        tmp_path, data_of(tmp_path, [row("a"), row("b", images=[]), row("c", images=None)])
    )

    assert all(prompt.pictures == () for prompt in source.train(1))


def test_the_tokens_of_pictures_count_towards_the_longest_prompt(tmp_path):
    rows = [row(images=[uri(png(size=size))]) for size in [(56, 28), (112, 112)]]

    source = source_of(tmp_path, data_of(tmp_path, rows), longest=30)

    assert source.facts()["train_size"] == source.facts()["left_out_too_long"] == 1


def test_one_text_with_other_pictures_is_another_prompt_and_is_held_out_with_its_own(tmp_path):
    rows = [row(images=[uri(png((grey, grey, grey)))]) for grey in range(40)]

    source = source_of(tmp_path, data_of(tmp_path, rows + rows), held_out=8)

    held_out = {prompt.pictures[0].key for prompt in source.heldout()}
    trained = {prompt.pictures[0].key for step in range(1, 80) for prompt in source.train(step)}
    assert len(held_out) == 8 and len(trained) == 32
    assert not held_out & trained


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("cat.png", "'images' is 'cat.png'; must be a list of pictures"),
        ([3], "images[0] is 3; must be a path beside the file, a data URI"),
        ([{}], "images[0] is an empty mapping; must be a path"),
        ([""], "images[0] is ''; must be a path"),
        (["cat.png"], "images[0] ('cat.png') is no file in"),
        (["../rows.jsonl"], "images[0] ('../rows.jsonl') lies outside"),
        ([{"bytes": None, "path": "cat.png"}], "images[0] ('cat.png') is no file in"),
        (["https://example.com/cat.png"], "is a URL; save the picture beside the data's file"),
        (["data:image/svg+xml,<svg/>"], "is a data URI without ';base64,'"),
        (["data:image/png;base64,a-_="], "is no base64"),
        ([uri(b"GIF89a")], "(6 bytes) is no PNG, JPEG, WebP or GIF"),
        (
            [uri(png()), uri(png(size=(1, 300)))],
            "images[1] (80 bytes) is 1 × 300; one side is at most 200",
        ),
        ([uri(png()), uri(png())], "has 1 × <image> and 2 pictures; write <image> where each"),
        ([], "has 1 × <image> and 0 pictures"),
    ],
)
def test_a_bad_picture_is_told_with_its_row_before_anything_starts(tmp_path, images, said):
    fault = fault_of(tmp_path, row("fine"), row(images=images))

    assert fault.startswith(f"spec.data.jsonl.path: {tmp_path / 'rows.jsonl'}:2: ")
    assert said in fault


def test_placeholders_of_the_template_count(tmp_path):
    rows = [row("which colour?", images=[uri(png())])]
    data = data_of(tmp_path, rows, template="<image>{question}")

    assert data_problems(data, base_dir=tmp_path, tower=True) == []
    assert "has 0 × <image> and 1 picture;" in fault_of(tmp_path, *rows)


def test_a_model_without_a_tower_is_given_no_pictures_and_reads_image_as_text(tmp_path):
    data = data_of(tmp_path, [row(), row("<image>", images=[])])

    assert data_problems(data, base_dir=tmp_path) == []
    said = "has pictures (images), and this job is trained on text alone; set spec.model.vision: frozen for"
    assert said in fault_of(tmp_path, row(images=["red.png"]), tower=False)
    batch = Batch(
        global_batch_size=1, samples_per_prompt=1, max_prompt_length=64, max_response_length=1
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        PromptSource(
            data_of(tmp_path, [row(images=["red.png"])]),
            batch=batch,
            tokenizer=ByteTokenizer(),
            seed=1,
            base_dir=tmp_path,
        )


def test_worked_examples_show_their_pictures_before_the_prompts(tmp_path):
    greys = [(grey, grey, grey) for grey in range(0, 250, 60)]
    rows = [row(images=[uri(png(grey))], answer=str(grey[0])) for grey in greys]
    limits = {"perPrompt": 1, "maxPixels": 28 * 56}
    data = data_of(tmp_path, rows, fewShot={"examples": 2, "separator": ";"}, images=limits)

    assert data_problems(data, base_dir=tmp_path, tower=True) == []
    prompts = source_of(tmp_path, data).train(1)

    (image,) = HFTokenizer(tmp_path / "model").continuation("<|image_pad|>")
    seen = [[int(pixels[0, 0, 0]) for pixels in prompt.scaled] for prompt in prompts]
    examples = seen[0][:2]
    shown = "".join(f"<image> which colour? {grey};" for grey in examples)
    for prompt, greys_seen in zip(prompts, seen, strict=True):
        assert greys_seen == [*examples, int(prompt.answer)]
        assert int(prompt.answer) not in examples
        assert prompt.text == f"{shown}<image> which colour?"
        assert prompt.token_ids.count(image) == 3 * 2
    assert data.most_pixels(1000) == 3 * 28 * 56


def test_pairs_go_without_pictures(tmp_path):
    pair = {"prompt": "a", "chosen": "b", "rejected": "c", "images": ["red.png"]}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair))
    pairs = Data.model_validate({"preferences": {"path": "pairs.jsonl"}})

    (problem,) = data_problems(pairs, base_dir=tmp_path, tower=True)
    assert "pairs.jsonl:1: has pictures (images), and pairs are of text alone" in str(problem)


def test_a_text_that_holds_the_models_own_tokens_is_named(tmp_path):
    data = data_of(tmp_path, [row("<image> <|image_pad|>", images=[uri(png())])])

    with pytest.raises(ConfigError, match=r"the prompt '<image> <\|image_pad\|>': its text holds"):
        source_of(tmp_path, data)


def with_bad_rows(folder: Path, **keys: Any) -> Data:
    """Sixteen rows with pictures of their own, of which one is cut in its pixels, and one is no picture."""
    grey = [png((n, n, n)) for n in range(16)]
    folder.mkdir()
    for number, content in enumerate(grey):
        (folder / f"{number}.png").write_bytes(content)
    (folder / "3.png").write_bytes(grey[3][:60])
    (folder / "5.png").write_bytes(b"none")
    return data_of(folder, [row(images=[f"{number}.png"]) for number in range(16)], **keys)


def test_bad_rows_are_left_out_and_named_in_the_log_where_the_job_says_so(tmp_path, caplog):
    data = with_bad_rows(tmp_path / "data", onBadRow="leave-out")

    assert data_problems(data, base_dir=tmp_path, tower=True) == []
    source = source_of(tmp_path, data, held_out=3)
    prompts = [prompt for step in range(1, 20) for prompt in source.train(step)]

    asked = [*prompts, *source.heldout()]
    assert {prompt.pictures[0].content for prompt in asked} == {
        f"{number}.png" for number in range(16) if number not in (3, 5)
    }
    assert all(prompt.scaled[0].shape == (28, 56, 3) for prompt in asked)
    assert "rows.jsonl:6: images[0] ('5.png') is no PNG" in caplog.text
    assert "rows.jsonl:4: images[0] ('3.png') cannot be decoded" in caplog.text
    again = [prompt.pictures for step in range(1, 20) for prompt in source.train(step)]
    assert again == [prompt.pictures for prompt in prompts]


def test_bad_rows_end_the_job_otherwise_at_the_latest_where_one_is_asked(tmp_path):
    data = with_bad_rows(tmp_path / "data")

    (problem,) = data_problems(data, base_dir=tmp_path, tower=True)
    assert "rows.jsonl:6: images[0] ('5.png') is no PNG" in str(problem)
    (tmp_path / "data" / "5.png").write_bytes(png())
    source = source_of(tmp_path, data)
    with pytest.raises(
        PictureError, match=r"rows\.jsonl:4: images\[0\] \('3\.png'\) cannot be decoded"
    ):
        for step in range(1, 20):
            source.train(step)


def test_rows_of_which_none_can_be_used_end_the_job_even_so(tmp_path):
    bad = [row(images=[uri(png((n, n, n))[:60])]) for n in range(3)]
    none = data_of(tmp_path / "none", [row(images=["none.png"])], onBadRow="leave-out")
    cut = data_of(tmp_path / "cut", bad, onBadRow="leave-out")

    (problem,) = data_problems(none, base_dir=tmp_path, tower=True)
    assert "is no file in" in str(problem)
    source = source_of(tmp_path, cut)
    with pytest.raises(ConfigError, match="no picture of 3 rows can be decoded"):
        source.train(1)


def test_a_picture_that_has_changed_since_the_run_began_is_told(tmp_path):
    data = data_of(tmp_path / "data", [row(images=["red.png"])] * 2)
    (tmp_path / "data" / "red.png").write_bytes(png())
    source = source_of(tmp_path, data)
    assert source.train(1)[0].scaled[0].shape == (28, 56, 3)

    (tmp_path / "data" / "red.png").write_bytes(png(size=(112, 56)))

    with pytest.raises(
        PictureError, match="is 112 × 56, and its header said 56 × 28; it has changed"
    ):
        source.train(2)
