"""Ragged grouped batches, and one test run a family."""

import pytest
import torch
from reference_models import FAMILIES, SIZES

from rljob_runtime.samples.sample import SampleBatch


@pytest.fixture
def ragged_batch() -> SampleBatch:
    """Groups of unequal sizes and lengths, with an empty and a one-token response."""
    generator = torch.Generator().manual_seed(1)

    def tokens(count: int) -> torch.Tensor:
        return torch.randint(0, SIZES["vocab_size"], (count,), generator=generator)

    return SampleBatch(
        prompts=[tokens(n) for n in (5, 1, 17)],
        group_of_B=torch.tensor([0, 2, 1, 0, 2, 2, 0]),
        responses=[tokens(n) for n in (4, 9, 1, 0, 12, 1, 7)],
    )


@pytest.fixture(params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    """Name of a family."""
    return str(request.param)
