"""Devices with a pipeline train through a whole run: they learn what one device learns."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from whole_runs import run

pytestmark = [pytest.mark.ray]


def test_devices_with_a_pipeline_learn_what_one_device_learns(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    short = {"steps": 2, "checkpoint": {}}

    runs = [
        run(job_file(**short, **devices), tmp_path / name)
        for name, devices in {
            "alone": {"accelerator": {"devicesPerNode": 1}},
            "pipeline": {
                "accelerator": {"devicesPerNode": 2},
                "update__parallelism": {"pipeline": 2, "virtualPipeline": 2},
            },
        }.items()
    ]

    assert [finished.code for finished in runs] == [0, 0], runs[1].output
    model = "checkpoints/step-000002/model/model.safetensors"
    expected, found = (load_file(finished.folder / model) for finished in runs)
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], atol=1e-4, rtol=0, msg=name)
