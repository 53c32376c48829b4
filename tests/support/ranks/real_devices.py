"""Tests on a real device: `pytest -m npu tests` where there is an NPU, `-m cuda` with a GPU."""

import pytest
import torch

DEVICES = [
    pytest.param("npu", marks=pytest.mark.npu),
    pytest.param("cuda", marks=pytest.mark.cuda),
]


def skip_without(device: str) -> str:
    """The device's name; skips the test where there is none."""
    module = getattr(torch, device, None)
    if module is None or not module.is_available():
        pytest.skip(f"no {device} device here")
    return device
