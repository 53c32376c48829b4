"""Rows of a file with their numbers: JSON Lines and parquet. Called by who makes questions of them."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from rljob_api.spec.json_text import parse_json
from rljob_api.spec.problems import Problem

Row = tuple[int, dict[str, Any] | str]
"""Number of a line and its object, or what is wrong with it."""


def read_lines(file: Path, *, at: str) -> list[Row] | Problem:
    """Objects of a JSON Lines file with their numbers. at: the file's place in the job."""
    try:
        lines = file.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except FileNotFoundError:
        return Problem(at, f"there is no file {file}; paths start at the job's")
    except OSError as error:
        return Problem(at, f"{file} cannot be read: {error}")
    rows = [(n, _object(line)) for n, line in enumerate(lines, start=1) if line.strip()]
    return rows or Problem(at, f"{file} is empty; write one JSON object a line")


def read_table(file: Path, *, at: str) -> list[Row] | Problem:
    """Rows of a parquet file with their numbers, from 1. at: the file's place in the job."""
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        what = (
            "needs pyarrow, which is not installed; pip install 'rljob[parquet]', or use JSON Lines"
        )
        return Problem(at, f"{file} {what}")
    if not file.is_file():
        return Problem(at, f"there is no file {file}; paths start at the job's")
    try:
        rows = parquet.read_table(file).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are among them
        return Problem(at, f"{file} cannot be read as parquet: {error}")
    return list(enumerate(rows, start=1)) or Problem(at, f"{file} has no rows")


def _object(line: bytes) -> dict[str, Any] | str:
    try:
        row = parse_json(line)
    except ValueError as error:
        return f"is no JSON ({str(error).replace(' line 1', '')})"
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}; each line must be an object"
    return row
