"""Read prompts from a JSON Lines or parquet file. All bad rows are reported together, by number."""

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
    """The contents of a file. questions: those of good rows, in the file's order. problems: those of
    bad rows, unless bad rows are left out. left_out: problems of the rows that are left out."""

    questions: list[Question]
    problems: list[Problem]
    left_out: Sequence[Problem] = ()

    def without_bad_rows(self) -> "JsonlFile":
        """Return the file with its bad rows left out, unless there are no good ones."""
        if not self.questions:
            return self
        return JsonlFile(questions=self.questions, problems=[], left_out=self.problems)


def read_prompts(data: Data, *, base_dir: Path, tower: bool) -> JsonlFile:
    """Read all of a `jsonl` or `parquet` file; empty lines are skipped. tower: whether the model sees
    pictures."""
    source = data.jsonl or data.parquet
    assert source is not None, "a section without a file of prompts"
    file = base_dir / source.path
    spec_path = f"spec.data.{'jsonl' if data.jsonl else 'parquet'}.path"
    rows = (
        read_lines(file, spec_path=spec_path)
        if data.jsonl
        else read_table(file, spec_path=spec_path)
    )
    if isinstance(rows, Problem):
        return unreadable_file(rows)

    def question(number: int, row: dict[str, Any]) -> Question | str:
        parsed = _question(row, source)
        if isinstance(parsed, str):
            return parsed
        label = f"{file}:{number}"
        shown = with_pictures(parsed, data, label=label, folder=file.parent, tower=tower)
        if isinstance(shown, str) or data.parquet is None:
            return shown
        return replace(shown, entry=_json_columns(shown.entry))

    return split_rows(rows, question, file=file, spec_path=spec_path)


def split_rows(
    rows: Iterable[Row],
    question: Callable[[int, dict[str, Any]], Question | str],
    *,
    file: Path,
    spec_path: str,
) -> JsonlFile:
    """Return the questions of good rows, and the problems of the first bad ones. question: makes a
    question from number and row."""
    questions: list[Question] = []
    bad: list[tuple[int, str]] = []
    for number, row in rows:
        parsed = row if isinstance(row, str) else question(number, row)
        if isinstance(parsed, str):
            bad.append((number, parsed))
        else:
            questions.append(parsed)
    shown = [Problem(spec_path, f"{file}:{n}: {text}") for n, text in bad[:SHOWN_LINES]]
    if len(bad) > SHOWN_LINES:
        others = len(bad) - SHOWN_LINES
        shown.append(Problem(spec_path, f"{file}: {others} other lines are bad as well"))
    return JsonlFile(questions=questions, problems=shown)


def unreadable_file(problem: Problem) -> JsonlFile:
    """Return the contents of a file that cannot be read."""
    return JsonlFile(questions=[], problems=[problem])


def _question(row: dict[str, Any], source: JsonlData) -> Question | str:
    """Return the line's question, or what is wrong with it."""
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


def _json_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that JSON can represent, for rewards; for example, times and bytes are
    omitted."""
    columns = {}
    for key, value in row.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            continue
        columns[key] = value
    return columns


def template_fields(row: dict[str, Any], prompt: str, *, answer_key: str) -> dict[str, str]:
    """Return the fields that a template may use: texts and numbers of an item, except its answer."""
    others = {
        key: str(value)
        for key, value in row.items()
        if isinstance(value, str | int | float) and key != answer_key
    }
    return {**others, "question": prompt}
