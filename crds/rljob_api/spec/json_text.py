"""JSON of files and of other programs, without surprises.

Called by whoever reads such a file. The standard library's reader lets brackets nest until Python's stack
ends (RecursionError), and takes half of a surrogate pair for text, which no file and no tokenizer takes.
"""

import re
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_core import from_json

Count = Annotated[int, Field(ge=0, lt=2**63)]
"""Of steps, rows and the like, in a file's model."""
HALF = re.compile("unexpected end of hex escape|lone leading surrogate in hex escape")
"""What the reader says of such a text."""
API_SERVER_LEVELS = 10_000
"""Of lists and mappings in one another that Kubernetes reads."""
MAX_BYTES = 64 << 20
"""Of a file that is read whole. The index of 700 billion parameters has a seventh of it."""


def parse_json(text: str | bytes) -> Any:
    """The value. Raises ValueError, with line and column, for what is no JSON, is nested more than 200 deep,
    has text that is no UTF-8, or a number of more than 4,300 digits."""
    try:
        return from_json(text.encode() if isinstance(text, str) else text)
    except ValueError as error:
        raise ValueError(HALF.sub("half of a surrogate pair", str(error))) from None


def allow_api_server_nesting() -> None:
    """Let the standard library's reader take what an API server does, 10,000 levels, rather than raise
    RecursionError at 1,000 as in Python 3.11: clients of Kubernetes use it. For the whole process."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), API_SERVER_LEVELS + 2000))


def read_json(file: Path) -> Any:
    """The value in a file, which may begin with a byte order mark. Raises OSError, and ValueError as
    `parse_json` and above MAX_BYTES."""
    return parse_json(content_of(file).removeprefix(BOM_UTF8))


def content_of(file: Path) -> bytes:
    """The file's content. Raises OSError, and ValueError above MAX_BYTES."""
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    return content


def check_text(text: str, what: str) -> str:
    """The text. Raises ValueError for half of a surrogate pair, which UTF-8 has no bytes for."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} has half of a surrogate pair, {text[error.start]!r} at character {error.start + 1}, "
            "which no tokenizer takes; decode bytes with errors='replace'"
        ) from None
    return text
