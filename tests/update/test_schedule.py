"""Learning rate by step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.engines import Optimizer
from rljob_runtime.update.learning_rate import learning_rate


def test_warm_up_is_linear_and_ends_at_the_peak():
    optimizer = Optimizer(learning_rate=1.0, warmup_steps=4)

    rates = [learning_rate(step, optimizer, 10) for step in range(1, 7)]

    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_from_the_peak_to_the_lower_end():
    optimizer = Optimizer(
        learning_rate=1.0, schedule="cosine", warmup_steps=2, min_learning_rate=0.2
    )

    rates = [learning_rate(step, optimizer, 12) for step in range(2, 13)]

    parameter = torch.nn.Parameter(torch.zeros(1))
    adamw = torch.optim.AdamW([parameter], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adamw, T_max=10, eta_min=0.2)
    expected = []
    for _ in rates:
        expected.append(cosine.get_last_lr()[0])
        adamw.step()
        cosine.step()
    assert rates == pytest.approx(expected)
    assert rates[0] == 1.0 and rates[-1] == 0.2


@given(
    step=st.integers(1, 50),
    warmup=st.integers(0, 60),
    total=st.integers(1, 50),
    lowest=st.floats(0, 1),
    schedule=st.sampled_from(["constant", "cosine"]),
)
def test_the_rate_stays_between_zero_and_the_peak(step, warmup, total, lowest, schedule):
    optimizer = Optimizer(
        learning_rate=0.5, schedule=schedule, warmup_steps=warmup, min_learning_rate=lowest
    )

    assert 0 <= learning_rate(step, optimizer, total) <= 0.5
