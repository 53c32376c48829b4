"""One thread before any vLLM starts: it takes their number for good, and forks of this process may not."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """vLLM makes `torch.set_num_threads` do nothing once it runs; a fork with two threads would hang."""
    torch.set_num_threads(1)
