"""Read the rows of a file with their numbers, from JSON Lines or parquet. Called by the readers that
make questions from them."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from rljob_api.spec.json_text import parse_json
from rljob_api.spec.problems import Problem

Row = tuple[int, dict[str, Any] | str]
"""A row's number, and its object or what is wrong with it."""


def read_lines(file: Path, *, spec_path: str) -> list[Row] | Problem:
    """Read the objects of a JSON Lines file with their line numbers. spec_path: the path of the file's
    setting in the job."""
    try:
        lines = file.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except FileNotFoundError:
        return Problem(spec_path, f"there is no file {file}; paths start at the job's")
    except OSError as error:
        return Problem(spec_path, f"{file} cannot be read: {error}")
    rows = [(n, _object(line)) for n, line in enumerate(lines, start=1) if line.strip()]
    return rows or Problem(spec_path, f"{file} is empty; write one JSON object a line")


def read_table(file: Path, *, spec_path: str) -> list[Row] | Problem:
    """Read the rows of a parquet file with their numbers, from 1. spec_path: the path of the file's
    setting in the job."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        remedy = (
            "needs pyarrow, which is not installed; pip install 'rljob[parquet]', or use JSON Lines"
        )
        return Problem(spec_path, f"{file} {remedy}")
    if not file.is_file():
        return Problem(spec_path, f"there is no file {file}; paths start at the job's")
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # includes pyarrow's own errors
        return Problem(spec_path, f"{file} cannot be read as parquet: {error}")
    return list(enumerate(rows, start=1)) or Problem(spec_path, f"{file} has no rows")


def _object(line: bytes) -> dict[str, Any] | str:
    try:
        row = parse_json(line)
    except ValueError as error:
        return f"is no JSON ({str(error).replace(' line 1', '')})"
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}; each line must be an object"
    return row
