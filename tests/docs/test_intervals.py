"""What stands behind ± in docs/benchmarks.md."""

import math

import pytest

from benchmarks.support.intervals import half_width, said_points, said_seeds, said_share, share_band


def test_an_interval_is_students_t_by_hand() -> None:
    assert half_width([0.1, 0.2, 0.3]) == pytest.approx(4.303 * 0.1 / math.sqrt(3))
    assert half_width([1.0, 1.0]) == 0


def test_a_single_value_is_told_without_an_interval() -> None:
    assert math.isnan(half_width([0.5]))
    assert said_share([0.5]) == "50.0 %"
    assert share_band(3, [0.5]) == (3, 0.5, 0.5)
    assert "no figure has an interval" in said_seeds(1)


def test_shares_and_points_are_told_with_their_interval() -> None:
    assert said_share([0.1, 0.2, 0.3]) == "20.0 ± 24.8 %"
    assert said_points([-0.01, -0.02, -0.03]) == "-2.0 ± 2.5"


def test_a_band_of_shares_stays_within_0_and_1() -> None:
    assert share_band(1, [0.0, 1.0]) == (1, 0.0, 1.0)


@pytest.mark.parametrize("number", [0, 11])
def test_as_many_values_as_the_table_has_no_quantile_for_are_refused(number) -> None:
    with pytest.raises(ValueError, match=f"{number} values .* give 1 to 10"):
        half_width([0.5] * number)
