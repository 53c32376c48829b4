"""Bad data sections, with their messages, before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.workload import Data
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import read_questions


def problems(data: dict[str, Any], folder: Path = Path()) -> list[tuple[str, str]]:
    found = data_problems(Data.model_validate(data), base_dir=folder)
    return [(problem.path, problem.message) for problem in found]


def gym(dataset: str, template: str = "{question}", **params: Any) -> dict[str, Any]:
    return {"reasoningGym": {"dataset": dataset, "params": params}, "template": template}


@pytest.mark.parametrize(
    ("data", "path", "told"),
    [
        (gym("spell_backwards"), "dataset", "did you mean 'spell_backward'?"),
        (gym("zzz"), "dataset", "reasoning-gym has"),
        (gym("chain_sum", min_term=2), "params.min_term", "did you mean 'min_terms'?"),
        (gym("chain_sum", seed=2), "params.seed", "is decided by spec.seed"),
        (gym("chain_sum", size=2), "params.size", "trainSize"),
        (gym("chain_sum", min_terms="two"), "params.min_terms", "must be of type int"),
        (gym("chain_sum", min_terms=2.5), "params.min_terms", "its default is 2"),
        (gym("chain_sum", allow_negation=1), "params.allow_negation", "of type bool"),
        (gym("chain_sum", min_terms=9, max_terms=2), "params", "refuses them"),
        (gym("composite"), "params", "Must specify at least one dataset"),
    ],
)
def test_bad_datasets_are_told(data: dict[str, Any], path: str, told: str) -> None:
    ((where, message),) = problems(data)

    assert where == f"spec.data.reasoningGym.{path}"
    assert told in message


def test_several_bad_parameters_are_told_at_once() -> None:
    found = problems(gym("chain_sum", a=1, b=2, min_terms="x"))

    assert [path.rsplit(".", 1)[1] for path, _ in found] == ["a", "b", "min_terms"]


@pytest.mark.parametrize(
    "data",
    [
        gym("spell_backward", "{word}=", min_word_len=3, max_word_len=9),
        gym("chain_sum", r"\boxed{} {{question}} {expression}"),
        gym("gsm_symbolic"),
        gym("basic_arithmetic", operators=["+", "-"]),
    ],
)
def test_good_datasets_have_no_problems(data: dict[str, Any]) -> None:
    assert problems(data) == []


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{wrod}=", "did you mean 'word'?"),
        ("{answer}", "not every item has"),
        ("{{question}}", "the same for every prompt"),
    ],
)
def test_templates_name_what_items_have(template: str, told: str) -> None:
    ((path, message),) = problems(gym("spell_backward", template))

    assert path == "spec.data.template"
    assert told in message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"prompt": "a", "answer": "b"\n', "data.jsonl:1: is no JSON"),
        ('{"prompt": "a", "answer": "b"}\n\n[1]\n', "data.jsonl:3: is a list"),
        ("[" * 5000, "data.jsonl:1: is no JSON (recursion limit exceeded"),
        (
            '{"prompt": "\\ud800", "answer": 1}',
            "is no JSON (half of a surrogate pair at column 19)",
        ),
        ('{"promt": "a", "answer": "b"}\n', "did you mean 'promt'?"),
        ('{"prompt": "a"}\n', "has no key 'answer' (answerField)"),
        ('{"prompt": "a", "answer": null}\n', "'answer' is a NoneType"),
        ('{"prompt": " ", "answer": 1}\n', "'prompt' is empty"),
        ("\n\n", "is empty; write one JSON object a line"),
    ],
)
def test_bad_lines_are_named_by_number(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "data.jsonl").write_text(text)

    ((path, message),) = problems({"jsonl": {"path": "data.jsonl"}}, tmp_path)

    assert path == "spec.data.jsonl.path"
    assert told in message


def test_a_text_may_hold_what_only_unicode_calls_a_line_s_end(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a\u2028b\x85c", "answer": 1}\n')

    assert problems({"jsonl": {"path": "data.jsonl"}}, tmp_path) == []


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("bad\n" * 40)

    found = problems({"jsonl": {"path": "data.jsonl"}}, tmp_path)

    assert len(found) == 6
    assert "35 other lines" in found[-1][1]


def test_bad_lines_are_left_out_where_the_job_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "answer": "b"}\nbad\n{"prompt": "c"}\n')
    data = {"jsonl": {"path": "data.jsonl"}, "onBadRow": "leave-out"}

    assert problems(data, tmp_path) == []
    (question,) = read_questions(Data.model_validate(data), tmp_path)

    assert question.answer == "b"
    assert "data.jsonl:2: is no JSON" in caplog.text and "data.jsonl:3: has no key" in caplog.text
    (tmp_path / "data.jsonl").write_text("bad\n")
    assert len(problems(data, tmp_path)) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    ((_, message),) = problems({"jsonl": {"path": "none.jsonl"}}, tmp_path)

    assert f"there is no file {tmp_path / 'none.jsonl'}" in message


def test_a_template_may_name_other_keys_of_a_line(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": "a", "answer": "b", "topic": "x"}\n')
    data: dict[str, Any] = {"jsonl": {"path": "data.jsonl"}, "template": "{topic}: {question}"}

    assert problems(data, tmp_path) == []
    assert problems(data | {"template": "{answer}{question}"}, tmp_path)
