"""Numbers as people read them."""

import math

import pytest
from run_events import history_of

from rljob_runtime.record.event_types import Group, SetFigures, ShownPicture
from rljob_runtime.report.display.history import gain95, interval95
from rljob_runtime.report.display.wording import (
    count,
    duration,
    figure,
    one_line,
    percent,
    prompt_text,
    seconds_of,
    sparkline,
    summary_rows,
)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (41, "0:41"), (725, "12:05"), (11220, "3:07:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (0.6123, "0.612"),
        (0.00312, "0.0031"),
        (7.08, "7.08"),
        (12.34, "12.3"),
        (4800.2, "4 800"),
        (3.1e-7, "3.1e-07"),
        (-0.25, "-0.250"),
        (math.nan, "nan"),
    ],
)
def test_figures_are_short(value: float, text: str) -> None:
    assert figure(value) == text
    assert len(text) <= 7


def test_other_units() -> None:
    assert percent(0.5821) == "58.2 %"
    assert count(12300.4) == "12 300"
    assert [seconds_of(s) for s in (0.004, 0.21, 3.4, 41.2, 125)] == [
        "0.004 s",
        "0.21 s",
        "3.4 s",
        "41 s",
        "2:05",
    ]
    assert math.isnan(math.nan) and percent(math.nan) == count(math.nan) == "nan"


def test_a_sparkline_rises_from_the_least_to_the_largest_value() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6], 8) == "▁▂▃▄▅▆▇"
    assert sparkline([0, 1], 8, ascii_only=True) == "_#"


def test_a_sparkline_averages_what_does_not_fit_and_leaves_gaps() -> None:
    assert sparkline([0.0, 2.0, 8.0, 10.0], 2) == "▁▇"
    assert sparkline([0.0, math.nan, 1.0], 3) == "▁ ▇"
    assert sparkline([3.0, 3.0], 4) == "▁▁"
    assert sparkline([math.nan], 4) == ""


def test_terminal_codes_in_samples_are_made_visible() -> None:
    assert one_line("a\nb\x1b[31m\x07") == "a⏎b·[31m·"


def test_an_accuracy_of_one_has_an_interval_all_the_same() -> None:
    low, high = interval95(SetFigures(accuracy=1.0, n=100, stderr=0.0))

    assert high == pytest.approx(1.0)
    assert low == pytest.approx(100 / (100 + 1.96**2))  # Wilson's bound where nothing failed


def test_a_gain_is_the_difference_of_independent_means() -> None:
    before = SetFigures(accuracy=0.5, n=512, stderr=0.03)
    after = SetFigures(accuracy=0.7, n=512, stderr=0.04)

    gain, low, high = gain95(before, after)

    assert gain == pytest.approx(0.2)
    assert (low, high) == pytest.approx((0.2 - 1.96 * 0.05, 0.2 + 1.96 * 0.05))


def test_the_summary_compares_before_and_after(events_of) -> None:
    history = history_of(events_of(steps=40))

    rows = dict(summary_rows(history))

    first, last = history.evaluations[0], history.evaluations[40]
    assert rows["held-out accuracy"].startswith("50.4 % → ")
    assert f"{100 * (last.accuracy - first.accuracy):+.1f} points" in rows["gain"]
    assert "first and the last 10 steps" in rows["reward"]
    assert rows["checkpoint"].endswith("step-40")


def test_a_prompt_in_a_terminal_says_where_its_pictures_are() -> None:
    pictures = [ShownPicture(width=56, height=28), ShownPicture(width=8, height=9, format="png")]
    group = Group(prompt="<image> or\n<image>, or <image>?", pictures=pictures)

    assert prompt_text(group) == "[picture 56 × 28] or⏎[picture 8 × 9], or <image>?"
    assert prompt_text(Group(prompt=" <image>? ")) == "<image>?"
