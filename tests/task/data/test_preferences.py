"""Pairs of responses from files: what becomes of them, and what is said of bad ones."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.workload import Batch, Data
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer

PAIRS = [{"prompt": f"p{i}", "chosen": f"good{i}", "rejected": f"bad{i}"} for i in range(20)]


def data_of(folder: Path, rows: list[Any], **keys: str) -> Data:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Data.model_validate({"preferences": {"path": "pairs.jsonl", **keys}})


def source_of(data: Data, folder: Path, *, longest: int = 16, held_out: int = 0) -> PromptSource:
    batch = Batch(
        global_batch_size=4, samples_per_prompt=2, max_prompt_length=16, max_response_length=longest
    )
    return PromptSource(
        data, batch=batch, tokenizer=ByteTokenizer(), seed=1, base_dir=folder, held_out=held_out
    )


def test_a_pair_is_two_responses_with_an_end_token_the_preferred_one_first(tmp_path: Path) -> None:
    source = source_of(data_of(tmp_path, PAIRS), tmp_path)

    for prompt in source.train(1):
        number = prompt.text.removeprefix("p")
        assert prompt.responses == (
            [*f"good{number}".encode(), EOS_ID],
            [*f"bad{number}".encode(), EOS_ID],
        )


def test_pairs_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    source = source_of(data_of(tmp_path, PAIRS), tmp_path, longest=6)  # good10 and an end: 7

    assert source.facts() == {
        "train_size": 10,
        "held_out": 0,
        "held_out_asked": 0,
        "left_out_held_out": 0,
        "left_out_too_long": 10,
    }


def test_a_prompt_with_several_pairs_is_held_out_with_all_of_them(tmp_path: Path) -> None:
    again = [{**pair, "chosen": "better"} for pair in PAIRS]
    source = source_of(data_of(tmp_path, PAIRS + again), tmp_path, held_out=4)

    held_out = {prompt.text for prompt in source.heldout()}
    trained = {prompt.text for step in range(1, 20) for prompt in source.train(step)}
    assert len(held_out) == 4
    assert held_out | trained == {pair["prompt"] for pair in PAIRS}
    assert not held_out & trained


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": "p", "chosen": "a"}, "has no key 'rejected' (rejectedField)"),
        ({"prompt": "p", "chosn": "a", "rejected": "b"}, "did you mean 'chosn'?"),
        ({"prompt": "p", "chosen": "a", "rejected": "a"}, "are equal: nothing is preferred"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "'prompt' is empty"),
        ({"prompt": "p", "chosen": ["a"], "rejected": "b"}, "'chosen' is a list; must be text"),
        (["p"], "is a list; each line must be an object"),
    ],
)
def test_a_bad_pair_is_named_by_its_line(tmp_path: Path, row: Any, told: str) -> None:
    (problem,) = data_problems(data_of(tmp_path, [*PAIRS[:2], row]), base_dir=tmp_path)

    assert problem.path == "spec.data.preferences.path"
    assert "pairs.jsonl:3: " in problem.message
    assert told in problem.message


def test_fields_can_have_other_names(tmp_path: Path) -> None:
    rows = [{"q": "x", "yes": "1", "no": "2"}]
    data = data_of(tmp_path, rows, promptField="q", chosenField="yes", rejectedField="no")

    assert data_problems(data, base_dir=tmp_path) == []


def test_parquet_without_pyarrow_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    data = Data.model_validate({"preferences": {"path": "pairs.parquet"}})

    (problem,) = data_problems(data, base_dir=tmp_path)

    assert "pip install 'rljob[parquet]', or use JSON Lines" in problem.message


def test_parquet_has_the_same_pairs(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist(PAIRS), tmp_path / "pairs.parquet")
    data = Data.model_validate({"preferences": {"path": "pairs.parquet"}})

    lines = source_of(data_of(tmp_path, PAIRS), tmp_path)
    columns = source_of(data, tmp_path)

    assert [p.responses for p in columns.train(1)] == [p.responses for p in lines.train(1)]
    (tmp_path / "pairs.parquet").write_bytes(b"PAR1 and nothing else")
    (problem,) = data_problems(data, base_dir=tmp_path)
    assert "cannot be read as parquet" in problem.message
