"""Prompts from a file, JSON Lines or parquet. Bad rows are named by their number, all of them at once."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import Data, JsonlData
from rljob_runtime.task.data.question import Question, with_pictures
from rljob_runtime.task.data.rows import Row, read_lines, read_table

SHOWN_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlFile:
    """The good lines, in the file's order, and what is wrong with the others, as far as these are not left
    out; left_out: what is wrong with those that are."""

    questions: list[Question]
    problems: list[Problem]
    left_out: Sequence[Problem] = ()

    def without_bad_rows(self) -> "JsonlFile":
        """The same with its bad rows left out, unless no good ones stay."""
        if not self.questions:
            return self
        return JsonlFile(questions=self.questions, problems=[], left_out=self.problems)


def read_prompts(data: Data, *, base_dir: Path, tower: bool) -> JsonlFile:
    """Read `jsonl` or `parquet` whole; empty lines are passed over. tower: whether the model sees
    pictures."""
    source = data.jsonl or data.parquet
    assert source is not None, "a section without a file of prompts"
    file = base_dir / source.path
    at = f"spec.data.{'jsonl' if data.jsonl else 'parquet'}.path"
    rows = read_lines(file, at=at) if data.jsonl else read_table(file, at=at)
    if isinstance(rows, Problem):
        return only(rows)

    def question(number: int, row: dict[str, Any]) -> Question | str:
        found = _question(row, source)
        if isinstance(found, str):
            return found
        label = f"{file}:{number}"
        shown = with_pictures(found, data, label=label, folder=file.parent, tower=tower)
        if isinstance(shown, str) or data.parquet is None:
            return shown
        return replace(shown, entry=_kept(shown.entry))

    return sorted_out(rows, question, file=file, at=at)


def sorted_out(
    rows: Iterable[Row],
    question: Callable[[int, dict[str, Any]], Question | str],
    *,
    file: Path,
    at: str,
) -> JsonlFile:
    """The questions of good rows, and what is wrong with the first bad ones. question: by number and row."""
    questions: list[Question] = []
    bad: list[tuple[int, str]] = []
    for number, row in rows:
        found = row if isinstance(row, str) else question(number, row)
        if isinstance(found, str):
            bad.append((number, found))
        else:
            questions.append(found)
    shown = [Problem(at, f"{file}:{n}: {text}") for n, text in bad[:SHOWN_LINES]]
    if len(bad) > SHOWN_LINES:
        others = len(bad) - SHOWN_LINES
        shown.append(Problem(at, f"{file}: {others} other lines are bad as well"))
    return JsonlFile(questions=questions, problems=shown)


def only(problem: Problem) -> JsonlFile:
    """A file that cannot be read."""
    return JsonlFile(questions=[], problems=[problem])


def _question(row: dict[str, Any], source: JsonlData) -> Question | str:
    """The line's question, or what is wrong with it."""
    for option, key in (("promptField", source.prompt_field), ("answerField", source.answer_field)):
        if key not in row:
            return f"has no key {key!r} ({option}){suggestion(key, row)}"
        if not isinstance(row[key], str | int | float) or isinstance(row[key], bool):
            return f"{key!r} is a {type(row[key]).__name__}; must be text or a number"
    prompt, answer = str(row[source.prompt_field]), str(row[source.answer_field])
    if not prompt.strip():
        return f"{source.prompt_field!r} is empty"
    fields = template_fields(row, prompt, answer_key=source.answer_field)
    return Question(fields=fields, answer=answer, entry=row)


def _kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """What goes along for rewards: what JSON can hold, which columns of times and bytes are not."""
    kept = {}
    for key, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        kept[key] = value
    return kept


def template_fields(row: dict[str, Any], prompt: str, *, answer_key: str) -> dict[str, str]:
    """What a template may name: texts and numbers of an item, except its answer."""
    others = {
        key: str(value)
        for key, value in row.items()
        if isinstance(value, str | int | float) and key != answer_key
    }
    return {**others, "question": prompt}
