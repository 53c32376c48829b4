"""The small job, as a file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from whole_runs import SMALL_JOB


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes the small job with changes given as dotted paths under spec."""

    def write(**changes: Any) -> Path:
        job = json.loads(json.dumps(SMALL_JOB))
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = job["spec"]
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        return file

    return write
