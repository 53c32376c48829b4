"""On-policy distillation by a whole run: a student that knows nothing comes nearer to its teacher."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import SMALL_JOB, run

from rljob_api.load import read_job
from rljob_runtime.models.tiny import make_tiny

pytestmark = [pytest.mark.ray]


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """The small job's own policy, warmed up to be right now and then."""
    cache = Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob")
    return make_tiny(
        read_job(SMALL_JOB), base_dir=tmp_path, cache_dir=cache, progress=lambda _: None
    )


def test_the_students_distance_from_its_teacher_falls(
    job_file: Callable[..., Path], teacher: Path, untrained_model: Path, tmp_path: Path
) -> None:
    job = job_file(
        steps=12,
        model={"path": str(untrained_model)},
        algorithm={"name": "distillation"},
        teacher={"path": str(teacher), "parallelism": {"tensor": 2}},
        update={"optimizer": {"learningRate": 3e-3}},
        evaluation={"prompts": 16},
        checkpoint={},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    distances = [event["metrics"]["teacher/kl"] for event in finished.of_kind("step")]
    assert len(distances) == 12
    assert distances[-1] < distances[0] / 2
    assert {event["name"] for event in finished.of_kind("phase")} >= {"teacher", "update"}
    assert len(finished.of_kind("evaluation")) == 2
