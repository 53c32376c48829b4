"""A whole run that trains adapters: it resumes bit for bit, and its adapters are exported."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner
from whole_runs import killed_copy, run

from rljob_runtime.cli.main import app
from rljob_runtime.models.adapter_files import ADAPTER_FILE, CONFIG_FILE, PREFIX

pytestmark = [pytest.mark.run]


def files_of(folder: Path, step: int) -> list[bytes]:
    checkpoint = folder / "checkpoints" / f"step-{step:06d}"
    return [
        (checkpoint / file).read_bytes()
        for file in ("model/model.safetensors", f"adapter/{ADAPTER_FILE}")
    ]


def test_a_run_with_adapters_resumes_bit_for_bit_and_exports_them(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    lora = {"rank": 4, "alpha": 8, "targetModules": ["all-linear"]}
    job = job_file(
        steps=4,
        update__lora=lora,
        update__optimizer__learningRate=3e-3,
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01}},
        checkpoint__every=2,
    )

    whole = run(job, tmp_path / "whole")
    killed_copy(whole, 2, tmp_path / "killed")
    resumed = run(job, tmp_path / "killed", "--resume")
    done = CliRunner().invoke(
        app, ["export", str(tmp_path / "whole"), str(tmp_path / "adapter"), "--adapter"]
    )

    assert whole.code == 0, whole.output
    assert resumed.code == 0, resumed.output
    assert files_of(tmp_path / "killed", 4) == files_of(tmp_path / "whole", 4)
    assert files_of(tmp_path / "whole", 2) != files_of(tmp_path / "whole", 4)
    metrics: list[dict[str, Any]] = [event["metrics"] for event in whole.of_kind("step")]
    assert max(step["kl"] for step in metrics) > 0
    assert done.exit_code == 0, done.output
    adapter, config = tmp_path / "adapter" / ADAPTER_FILE, tmp_path / "adapter" / CONFIG_FILE
    assert {name.split(".")[-3] for name in load_file(adapter)} == set(
        json.loads(config.read_text())["target_modules"]
    )
    assert all(name.startswith(f"{PREFIX}model.layers.") for name in load_file(adapter))
