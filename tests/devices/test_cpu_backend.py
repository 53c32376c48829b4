"""Emulated devices: set-up and what they offer."""

import random

import numpy as np
import pytest
import torch

from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import DeviceMemoryError


def test_set_up_makes_the_global_generators_repeat():
    def draw():
        CpuBackend(name="emulated:0").set_up(seed=2**62 + 5, num_threads=1)
        return random.random(), np.random.rand(), torch.rand(()).item()

    assert draw() == draw()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1


def test_a_device_of_the_given_size_speaks_gloo():
    backend: Backend = CpuBackend(name="emulated:1", limit_bytes=10)

    assert (backend.device.type, backend.collectives) == ("cpu", "gloo")
    with pytest.raises(DeviceMemoryError, match="emulated:1"):
        backend.ledger.track(MemoryKind.KV_CACHE, [torch.zeros(3)])
