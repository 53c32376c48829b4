"""Read prompts from a data source of an installed package. Items that cannot be used are reported by
number."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rljob_api.spec.workload import Data, SourceData
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import data_use, load
from rljob_runtime.task.data.jsonl import template_fields
from rljob_runtime.task.data.question import Question, with_pictures


def read_items(source: SourceData, data: Data, *, base_dir: Path, tower: bool) -> list[Question]:
    """Read all items of the source, in its order. data: the section that names it. base_dir: folder of
    the job's file. tower: whether the model sees pictures.

    Raises ConfigError if the source is not installed, fails, or returns an item without question and
    answer.
    """

    def question(number: int, item: object) -> Question:
        label = f"{source.name}: item {number}"
        parsed = _question(item, number)
        shown = with_pictures(parsed, data, label=label, folder=base_dir, tower=tower)
        if isinstance(shown, str):
            raise ValueError(f"item {number} {shown}")
        _check_json(shown.entry, number)
        return shown

    factory = load(data_use(source.name))
    try:
        items = factory(source.params or {}, base_dir)
        if not isinstance(items, Iterable):
            raise TypeError(f"it made a {type(items).__name__}; items must be iterable")
        questions = [question(number, item) for number, item in enumerate(items)]
    except Exception as error:
        raise ConfigError(f"{source.name} failed: {type(error).__name__}: {error}") from error
    if not questions:
        raise ConfigError(f"{source.name} has no items; give one for each prompt")
    return questions


def _question(item: object, number: int) -> Question:
    if not isinstance(item, dict):
        raise TypeError(f"item {number} is a {type(item).__name__}; each must be a dict")
    for key in ("question", "answer"):
        if not isinstance(item.get(key), str) or not item["question"].strip():
            raise ValueError(f"item {number} has no text under {key!r}")
    fields = template_fields(item, item["question"], answer_key="answer")
    return Question(fields=fields, answer=item["answer"], entry=item)


def _check_json(item: dict[str, Any], number: int) -> None:
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"item {number} holds what JSON cannot: {error}") from error
