"""What a page carries that was written to a file: a report, or two runs over each other."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any


def page_data(page: Path) -> Any:
    """The JSON that its script shows."""
    [packed] = re.findall(
        '<script type="text/plain" id="data">([^<]*)</script>', page.read_text("utf-8")
    )
    return json.loads(gzip.decompress(base64.b85decode(packed.replace(",", "<"))))
