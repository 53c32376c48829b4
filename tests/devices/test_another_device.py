"""Engines on a device whose tensors are not the host's: nothing mixes the two, and results are the host's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "ranks" / "on_other_device.py"
"""Not to be imported here: it has torch know another device, and forks of such a process train no more."""
SECONDS = 300


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By what was done: what came of it here, and there. Of one process, as torch takes seconds to know
    such a device."""
    folder = tmp_path_factory.mktemp("models")
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


@pytest.mark.parametrize("model", ["dense", "experts"])
def test_steps_are_the_hosts(found: dict[str, Any], model: str) -> None:
    assert max(found[model].values()) < 1e-5


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_samples_are_the_hosts(found: dict[str, Any], quantization: str) -> None:
    here, there = found[quantization]

    assert len(here[0]) == 16
    assert there == here


def test_what_mixes_devices_is_refused(found: dict[str, Any]) -> None:
    assert found["mixed"] == "aten.add.Tensor takes torch.Size([3]) of cpu beside other:0"
