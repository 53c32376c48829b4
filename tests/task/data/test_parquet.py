"""Prompts of a parquet file: the same as those of JSON Lines, with pictures as data sets have them."""

import datetime
import io
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from rljob_api.spec.evaluation import EvaluationSuite
from rljob_api.spec.workload import Batch, Data
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import PromptSource, read_questions
from rljob_runtime.task.pictures.picture import pixels_of
from rljob_runtime.task.tokenizer import ByteTokenizer

ROWS = [{"q": f"{i} + {i}", "a": 2 * i, "topic": "sums"} for i in range(8)]


def table_of(folder: Path, rows: list[dict[str, Any]]) -> Data:
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    return Data.model_validate(
        {
            "parquet": {"path": "rows.parquet", "promptField": "q", "answerField": "a"},
            "template": "{topic}: {question}",
        }
    )


def test_a_table_has_the_prompts_of_the_same_json_lines(tmp_path: Path) -> None:
    columns = table_of(tmp_path, ROWS)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = {"path": "rows.jsonl", "promptField": "q", "answerField": "a"}
    lines = Data.model_validate({"jsonl": source, "template": columns.template})
    batch = Batch(
        global_batch_size=4, samples_per_prompt=2, max_prompt_length=32, max_response_length=4
    )

    asked = [
        PromptSource(data, batch=batch, tokenizer=ByteTokenizer(), seed=1, base_dir=tmp_path).train(
            1
        )
        for data in (columns, lines)
    ]

    assert data_problems(columns, base_dir=tmp_path) == []
    assert asked[0] == asked[1]
    assert asked[0][0].text.startswith("sums: ")


def test_of_a_row_goes_to_the_rewards_what_json_can_hold(tmp_path: Path) -> None:
    day = datetime.date(2026, 1, 2)
    row = ROWS[1] | {"day": day, "raw": b"\0", "nested": {"list": [1, None]}}

    (question,) = read_questions(table_of(tmp_path, [row]), tmp_path)

    assert question.entry == ROWS[1] | {"nested": {"list": [1, None]}}


def test_bad_rows_of_a_table_are_named(tmp_path: Path) -> None:
    data = table_of(tmp_path, [ROWS[0], {"q": "b", "a": None, "topic": "none"}])

    (problem,) = data_problems(data, base_dir=tmp_path)
    assert problem.path == "spec.data.parquet.path"
    assert "rows.parquet:2: 'a' is a NoneType; must be text or a number" in problem.message
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 and nothing else")
    (problem,) = data_problems(data, base_dir=tmp_path)
    assert "cannot be read as parquet" in problem.message
    (tmp_path / "rows.parquet").unlink()
    (problem,) = data_problems(data, base_dir=tmp_path)
    assert "there is no file" in problem.message


def test_without_pyarrow_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = table_of(tmp_path, ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    (problem,) = data_problems(data, base_dir=tmp_path)

    assert "pip install 'rljob[parquet]', or use JSON Lines" in problem.message


def test_pictures_are_the_bytes_of_a_table_or_lie_beside_it(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (1, 2, 3)).save(stream, "PNG")
    (tmp_path / "own.png").write_bytes(stream.getvalue())
    images = [{"bytes": stream.getvalue(), "path": None}, {"bytes": None, "path": "own.png"}]
    row = ROWS[1] | {"q": "<image> or <image>", "images": images}
    data = table_of(tmp_path, [row])

    (question,) = read_questions(data, tmp_path, tower=True)

    assert [pixels_of(picture)[0, 0].tolist() for picture in question.pictures] == [[1, 2, 3]] * 2
    assert "images" not in question.entry
    (problem,) = data_problems(data, base_dir=tmp_path)
    assert "rows.parquet:1: has pictures (images), and this job" in problem.message


def test_a_suite_may_be_a_table(tmp_path: Path) -> None:
    data = table_of(tmp_path, ROWS)
    suite = EvaluationSuite.model_validate({"name": "own", "parquet": {"path": "rows.parquet"}})

    of_suite = suite.data(Data.model_validate({"jsonl": {"path": "other"}}), None)

    assert of_suite.jsonl is None and of_suite.parquet == suite.parquet != data.parquet
