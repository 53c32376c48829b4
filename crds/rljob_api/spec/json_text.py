"""Parse JSON of files and of other programs, without surprises.

Called by every reader of such a file. The standard library's reader nests brackets until Python's stack
overflows (RecursionError). It also accepts half of a surrogate pair as text, which no file and no tokenizer
accepts.
"""

import re
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Number of steps, rows and the like, in a file's model."""
HALF = re.compile("unexpected end of hex escape|lone leading surrogate in hex escape")
"""Error messages of the reader for half of a surrogate pair."""
API_SERVER_LEVELS = 10_000
"""Levels of nested lists and mappings that Kubernetes reads."""
MAX_BYTES = 64 << 20
"""Largest file that is read into memory. The index of 700 billion parameters has a seventh of it."""


def parse_json(text: str | bytes) -> Any:
    """Return the value. Raises ValueError, with line and column, for text that is not JSON, is nested more
    than 200 levels deep, is not UTF-8, or has a number of more than 4,300 digits."""
    try:
        return from_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise ValueError(HALF.sub("half of a surrogate pair", str(error))) from None


def allow_api_server_nesting() -> None:
    """Let the standard library's reader accept what an API server does, 10,000 levels, for the full process.
    Otherwise it raises RecursionError at 1,000 levels in Python 3.11, and Kubernetes clients use it."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), API_SERVER_LEVELS + 2000))


def read_json(file: Path) -> Any:
    """Return the value in a file, which may begin with a byte order mark. Raises OSError, and ValueError for
    invalid JSON (see `parse_json`) and for files above MAX_BYTES."""
    return parse_json(content_of(file).removeprefix(BOM_UTF8))


def content_of(file: Path) -> bytes:
    """Return the file's content. Raises OSError, and ValueError above MAX_BYTES."""
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def check_text(text: str, owner: str) -> str:
    """Return the text. Raises ValueError for half of a surrogate pair, which has no bytes in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{owner} has half of a surrogate pair, {text[error.start]!r} at character {error.start + 1}, "
            "which no tokenizer takes; decode bytes with errors='replace'"
        ) from None
    return text
