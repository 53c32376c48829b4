"""Prompts from a JSON Lines file. Bad lines are named by their number, all of them at once."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.spec.json_text import parse_json
from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import JsonlData
from rljob_runtime.task.data.question import Question

PATH = "spec.data.jsonl"
SHOWN_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlFile:
    """The good lines, in the file's order, and what is wrong with the others."""

    questions: list[Question]
    problems: list[Problem]


Row = tuple[int, dict[str, Any] | str]
"""Number of a line and its object, or what is wrong with it."""


def read_jsonl(source: JsonlData, *, base_dir: Path) -> JsonlFile:
    """Read a whole file; empty lines are passed over."""
    rows = read_lines(base_dir / source.path, at=f"{PATH}.path")
    if isinstance(rows, Problem):
        return only(rows)
    return sorted_out(
        rows,
        lambda row: _question(row, source),
        file=base_dir / source.path,
        at=f"{PATH}.path",
    )


def read_lines(file: Path, *, at: str) -> list[Row] | Problem:
    """Objects of a JSON Lines file with their numbers. at: the file's place in the job."""
    try:
        lines = file.read_bytes().splitlines()
    except FileNotFoundError:
        return Problem(at, f"there is no file {file}; paths start at the job's")
    except OSError as error:
        return Problem(at, f"{file} cannot be read: {error}")
    rows = [(n, _object(line)) for n, line in enumerate(lines, start=1) if line.strip()]
    return rows or Problem(at, f"{file} is empty; write one JSON object a line")


def sorted_out(
    rows: Iterable[Row],
    question: Callable[[dict[str, Any]], Question | str],
    *,
    file: Path,
    at: str,
) -> JsonlFile:
    """The questions of good rows, and what is wrong with the first bad ones."""
    questions: list[Question] = []
    bad: list[tuple[int, str]] = []
    for number, row in rows:
        found = row if isinstance(row, str) else question(row)
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


def _object(line: bytes) -> dict[str, Any] | str:
    try:
        row = parse_json(line)
    except ValueError as error:
        return f"is no JSON ({str(error).replace(' line 1', '')})"
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}; each line must be an object"
    return row


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


def template_fields(row: dict[str, Any], prompt: str, *, answer_key: str) -> dict[str, str]:
    """What a template may name: texts and numbers of an item, except its answer."""
    others = {
        key: str(value)
        for key, value in row.items()
        if isinstance(value, str | int | float) and key != answer_key
    }
    return {**others, "question": prompt}
