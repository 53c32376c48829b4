"""What a backend's set_up changes belongs to the process: every test gives it back."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from rljob_runtime.devices.own_time import OWN_TIME


@pytest.fixture(autouse=True)
def process_settings() -> Iterator[None]:
    """Threads, deterministic kernels, the clock and the global generators as they were."""
    threads, filled = torch.get_num_threads(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    clock = OWN_TIME.clock
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    OWN_TIME.clock = clock
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("default")
    torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
