"""The benchmarks' win rate: ties are half a win, and its standard error is that of the prompts' points."""

import pytest

from benchmarks.learning.win_rate import win_rate


def test_wins_count_whole_and_ties_half():
    found = win_rate([1.0, 0.5, 0.2, 0.0], [0.0, 0.5, 0.7, -1.0])

    assert found.share == 2.5 / 4
    # points 1, ½, 0, 1: squared distances from 0.625 add up to 0.6875, over 3, over 4
    assert found.stderr == pytest.approx((0.6875 / 3 / 4) ** 0.5)


def test_who_wins_here_loses_there():
    ours, theirs = [0.3, 0.9, 0.9, 0.1, 0.4], [0.1, 0.9, 1.0, 0.0, 0.2]

    assert win_rate(ours, theirs).share + win_rate(theirs, ours).share == pytest.approx(1)
    assert win_rate(ours, ours).share == 0.5
    assert win_rate(ours, ours).stderr == 0


def test_a_prompt_without_an_opponent_is_refused():
    with pytest.raises(ValueError):
        win_rate([1.0, 0.0], [1.0])
