"""Make a process' work repeatable on every device. Called by the backends."""

import random

import numpy as np
import torch


def make_repeatable(*, seed: int, num_threads: int, nondeterministic: str) -> None:
    """Fix threads, seeds and deterministic kernels for the whole process.

    nondeterministic: "error" or "warn" for operations without a deterministic form. Our code does not use the
    global generators; they are seeded for users' code.
    """
    torch.set_num_threads(num_threads)
    # use_deterministic_algorithms(True) would import torch's compiler, which takes 4 s in every process.
    torch.set_deterministic_debug_mode(nondeterministic)
    # Deterministic mode would also fill every new tensor, which costs time and changes no result.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
