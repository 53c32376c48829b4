"""Emulated devices on CPU: a process, its threads, and a ledger in place of a device's memory.

Collectives are gloo's. Chosen by `accelerator.type: emulated`.
"""

import random

import numpy as np
import torch

from rljob_runtime.backends.ledger import MemoryLedger


class CpuBackend:
    """An emulated device. name: for messages, e.g. "emulated:3". limit_bytes: None for no limit."""

    def __init__(self, *, name: str, limit_bytes: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.collectives = "gloo"
        self.ledger = MemoryLedger(device=name, limit_bytes=limit_bytes)

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Fix threads, seeds and deterministic kernels for the whole process.

        Results repeat bitwise for the same number of threads on the same kind of processor. Nothing
        of ours draws from the global generators; they are seeded for the sake of users' code.
        """
        torch.set_num_threads(num_threads)
        # use_deterministic_algorithms(True) would import torch's compiler: 4 s of every process.
        torch.set_deterministic_debug_mode("error")
        # Deterministic mode would also fill every new tensor, which costs and changes no result.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
