"""Read pairs of responses, one of which is preferred, from JSON Lines or parquet. Bad rows are
reported by number."""

from pathlib import Path
from typing import Any

from rljob_api.spec.messages import suggestion
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import PreferenceData
from rljob_runtime.task.data.jsonl import JsonlFile, split_rows, template_fields, unreadable_file
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.data.rows import read_lines, read_table

PATH = "spec.data.preferences.path"
KEY = "images"
"""Key of pictures, as in rows of other files."""


def read_preferences(source: PreferenceData, *, base_dir: Path) -> JsonlFile:
    """Read all pairs of a file. A prompt may have several."""
    file = base_dir / source.path
    rows = (read_table if file.suffix == ".parquet" else read_lines)(file, spec_path=PATH)
    if isinstance(rows, Problem):
        return unreadable_file(rows)
    return split_rows(rows, lambda _, row: _pair(row, source), file=file, spec_path=PATH)


def _pair(row: dict[str, Any], source: PreferenceData) -> Question | str:
    """Return the row's question with its responses, or what is wrong with the row."""
    keys = {
        "promptField": source.prompt_field,
        "chosenField": source.chosen_field,
        "rejectedField": source.rejected_field,
    }
    for option, key in keys.items():
        if key not in row:
            return f"has no key {key!r} ({option}){suggestion(key, row)}"
        if not isinstance(row[key], str):
            return f"{key!r} is a {type(row[key]).__name__}; must be text"
    prompt, chosen, rejected = (row[key] for key in keys.values())
    if not prompt.strip():
        return f"{source.prompt_field!r} is empty"
    if chosen == rejected:
        return (
            f"{source.chosen_field!r} and {source.rejected_field!r} are equal: nothing is preferred"
        )
    if row.get(KEY):
        return f"has pictures ({KEY}), and pairs are of text alone; leave {KEY} out of the data"
    others = {key: value for key, value in row.items() if key != source.rejected_field}
    fields = template_fields(others, prompt, answer_key=source.chosen_field)
    return Question(fields=fields, answer=chosen, entry={}, responses=(chosen, rejected))
