"""Write a generated file, or check that the committed one is up to date."""

import sys
from pathlib import Path


def write_or_check(file: Path, text: str, *, check: bool) -> int:
    """Return the exit code: 1 if `check` is set and the file's bytes differ from `text`."""
    data = text.encode()
    if not check:
        file.write_bytes(data)
        return 0
    if file.is_file() and file.read_bytes() == data:
        return 0
    sys.stderr.write(f"{file} is out of date; run make generate\n")
    return 1
