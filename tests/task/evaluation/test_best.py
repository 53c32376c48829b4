"""Which evaluation is the best, and when better ones have stopped coming."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.evaluation import EarlyStop
from rljob_runtime.record.best import Best


def after(values: list[float], *, min_delta: float = 0.0) -> Best:
    """Evaluations after steps 0, 10, 20 ..."""
    best = Best(metric="accuracy")
    for number, value in enumerate(values):
        best.take(10 * number, value, min_delta=min_delta)
    return best


def test_the_first_evaluation_is_the_best_and_so_is_each_that_is_higher() -> None:
    best = Best(metric="accuracy")

    assert [best.take(step, v) for step, v in enumerate([0.2, 0.5, 0.5, 0.4, 0.6])] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert (best.step, best.value) == (4, 0.6)


@pytest.mark.parametrize(
    ("values", "min_delta", "ends"),
    [
        ([0.5, 0.4, 0.4], 0.0, True),
        ([0.5, 0.4, 0.6], 0.0, False),
        ([0.5, 0.5, 0.5], 0.0, True),
        ([0.5, 0.51, 0.52], 0.1, True),  # better, but by too little
        ([0.5, 0.55, 0.65], 0.1, False),  # by enough since the mark
        ([0.5, 0.4], 0.0, False),
    ],
)
def test_training_ends_after_two_evaluations_that_were_not_better(
    values: list[float], min_delta: float, ends: bool
) -> None:
    assert after(values, min_delta=min_delta).ends(EarlyStop(patience=2)) == ends


def test_without_a_rule_training_never_ends_early() -> None:
    assert not after([0.5] * 50).ends(None)


def test_a_small_gain_is_the_best_though_it_does_not_count_as_better() -> None:
    best = after([0.5, 0.51], min_delta=0.1)

    assert (best.step, best.value, best.mark, best.waited) == (10, 0.51, 0.5, 1)


def test_an_evaluation_that_is_made_again_counts_once() -> None:
    best = after([0.5, 0.4])

    assert not best.take(10, 0.9)
    assert best == after([0.5, 0.4])


@given(
    st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=20),
    st.floats(min_value=0, max_value=0.3),
)
def test_the_best_is_the_first_of_the_highest(values: list[float], min_delta: float) -> None:
    best = after(values, min_delta=min_delta)

    assert best.value == max(values)
    assert best.step == 10 * values.index(max(values))
    assert best.mark <= best.value <= best.mark + min_delta or best.value == best.mark
    assert best.waited < len(values)


def test_it_is_read_back_and_not_for_another_metric(tmp_path: Path) -> None:
    best = after([0.2, 0.5, 0.3])

    best.write(tmp_path / "checkpoints")

    assert Best.read(tmp_path / "checkpoints", "accuracy") == best
    assert Best.read(tmp_path / "checkpoints", "reward") == Best(metric="reward")
    assert Best.read(tmp_path, "accuracy") == Best(metric="accuracy")


def test_a_run_that_went_back_knows_the_best_of_what_is_left() -> None:
    best = after([0.2, 0.5, 0.3])  # the best after step 10, the last after 20

    assert best.until(25) == best
    assert best.until(15) == replace(best, waited=0, last=15)
    assert best.until(5) == Best(metric="accuracy")
