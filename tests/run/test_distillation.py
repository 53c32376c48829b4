"""On-policy distillation by a whole run: a student that has lost some of it comes back to its teacher."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from whole_runs import SMALL_JOB, run

from rljob_api.check.load import read_job
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.tiny import make_tiny
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

pytestmark = [pytest.mark.run]
NOISE = 0.8
"""Of each weight, in standard deviations of its tensor."""


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    """The small job's own policy, warmed up to be right now and then."""
    cache = Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob")
    return make_tiny(
        read_job(SMALL_JOB), base_dir=tmp_path, cache_dir=cache, progress=lambda _: None
    )


@pytest.fixture
def student(teacher: Path, tmp_path: Path) -> Path:
    """The teacher with noise in its weights."""
    decoder = load_decoder(teacher, dtype=torch.float32)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, weight in decoder.named_hf_parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=random)
                weight.add_(noise * weight.std(), alpha=NOISE)
    folder = tmp_path / "student"
    save_hf(decoder.named_hf_parameters(), folder=folder, config=CONFIG)
    save_byte_tokenizer(folder)
    return folder


def test_the_students_distance_from_its_teacher_falls(
    job_file: Callable[..., Path], teacher: Path, student: Path, tmp_path: Path
) -> None:
    job = job_file(
        steps=16,
        update={"engine": "megatron", "optimizer": {"learningRate": 5e-4}},
        model={"path": str(student)},
        algorithm={"name": "distillation"},
        teacher={"path": str(teacher), "parallelism": {"tensor": 2}},
        evaluation={"prompts": 16},
        checkpoint={},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    distances = [event["metrics"]["teacher/kl"] for event in finished.of_kind("step")]
    assert len(distances) == 16
    assert sum(distances[-4:]) < 0.6 * sum(distances[:4])
    assert {event["name"] for event in finished.of_kind("phase")} >= {"teacher", "update"}
    assert len(finished.of_kind("evaluation")) == 2
