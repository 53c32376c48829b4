"""Writing a generated file, or checking that the committed one is up to date."""

import sys
from pathlib import Path


def write_or_check(file: Path, text: str, *, check: bool) -> int:
    """Exit code: 1 when `check` finds other bytes in the file than `text`."""
    data = text.encode()
    if not check:
        file.write_bytes(data)
        return 0
    if file.is_file() and file.read_bytes() == data:
        return 0
    sys.stderr.write(f"{file} is out of date; run make generate\n")
    return 1
