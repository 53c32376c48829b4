"""Differences over the same prompts: their interval against numpy's numbers and Student's table."""

import math

import numpy as np
import pytest

from rljob_runtime.report.display.paired import over_pairs, over_prompts, student_quantile

TABLE = {1: 12.7062, 4: 2.7764, 6: 2.4469, 9: 2.2622, 30: 2.0423, 120: 1.9799, 10**6: 1.9600}
"""Student's t at 97.5 %, as printed."""


@pytest.mark.parametrize("degrees", TABLE)
def test_the_quantile_is_the_tables(degrees):
    assert student_quantile(degrees) == pytest.approx(TABLE[degrees], abs=1e-4)


def test_the_interval_is_of_the_differences_not_of_the_values():
    rng = np.random.default_rng(4)
    a = rng.normal(0, 10, 31)
    b = a + rng.normal(0.5, 0.1, 31)

    found = over_prompts(list(a), list(b))

    assert found is not None
    half = TABLE[30] * np.std(b - a, ddof=1) / math.sqrt(31)
    assert found.gain == pytest.approx(np.mean(b - a))
    assert (found.low, found.high) == pytest.approx(
        (found.gain - half, found.gain + half), abs=1e-4
    )
    assert found.n == 31


def test_other_prompts_are_not_compared_and_rewards_that_failed_are_left_out():
    assert over_prompts([1.0], [1.0, 2.0]) is None
    assert over_prompts([math.nan], [1.0]) is None
    found = over_prompts([1.0, math.nan, 0.0], [2.0, 2.0, 0.5])
    assert found is not None
    assert (found.gain, found.n) == (0.75, 2)


def test_several_pairs_of_runs_count_by_their_means():
    found, alone = over_pairs([0.1, 0.2, 0.6]), over_pairs([0.1])

    half = 4.3027 * np.std([0.1, 0.2, 0.6], ddof=1) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.3 - half, 0.3 + half))
    assert math.isnan(alone.low)
