"""Which rewards and which devices a chart shows, and its axes."""

from typing import Any

import pytest
from run_events import history_of

from rljob_runtime.report.display.chart_table import MOST_DEVICES, charts
from rljob_runtime.report.display.figures import Figure
from rljob_runtime.report.display.history import RunHistory


def steps_with(**metrics: float) -> RunHistory:
    told = {name.replace("__", "/"): value for name, value in metrics.items()}
    return history_of(
        {"kind": "step", "step": step, "time": float(step), "seconds": 1.0, "metrics": told}
        for step in (1, 2)
    )


def drawn(history: RunHistory) -> dict[str, Figure]:
    return {chart["key"]: chart for chart in charts(history)}


def test_the_share_of_errors_is_no_reward_of_its_own() -> None:
    shares = {"reward__mean": 1.0, "reward__error_share": 0.0, "reward__correct": 1.0}

    assert "reward-parts" not in drawn(steps_with(**shares))
    chart = drawn(steps_with(**shares, reward__short=0.5))["reward-parts"]
    assert {trace["name"] for trace in chart["figure"]["data"]} == {"correct", "short"}


def test_of_many_devices_the_fullest_are_drawn_and_counted() -> None:
    peaks = {f"memory__peak_bytes__{device}": float(device) for device in range(40)}

    chart = drawn(steps_with(**peaks))["memory"]

    names = {trace["name"] for trace in chart["figure"]["data"]}
    assert names == {f"device {device}" for device in range(40 - MOST_DEVICES, 40)}
    assert "The 16 of 40 devices that held most" in chart["note"]


def layout_of(chart: str, *steps: dict[str, float]) -> dict[str, Any]:
    events = (
        {"kind": "step", "step": step, "time": 0.0, "seconds": 1.0, "metrics": metrics}
        for step, metrics in enumerate(steps, 1)
    )
    return dict(drawn(history_of(events))[chart]["figure"]["layout"])


@pytest.mark.parametrize("value", [0.0, 3e-4, -2.5, 14_300_000.0])
def test_the_axis_of_a_constant_curve_has_its_value_alone(value: float) -> None:
    noise = 1 + 1e-10
    layout = layout_of(
        "gradient",
        {"gradient_norm": value, "learning_rate": value},
        {"gradient_norm": value * noise, "learning_rate": value * noise},
    )

    for axis in (layout["yaxis"], layout["yaxis2"]):
        low, high = axis["range"]
        ticks = [axis["tick0"] + n * axis["dtick"] for n in (-1, 0, 1)]
        assert [low <= tick <= high for tick in ticks] == [False, True, False]
        assert ticks[1] == pytest.approx(value, rel=1e-9)
        assert high - low == pytest.approx(abs(value) / 10 or 0.02)


def test_a_curve_that_moves_has_an_axis_of_the_librarys() -> None:
    layout = layout_of("entropy", {"entropy": 1.0}, {"entropy": 1.0 + 1e-6})

    assert layout["yaxis"]["tickmode"] == "auto" and "range" not in layout["yaxis"]


def test_a_curve_without_its_partner_is_named_and_stands_on_the_left() -> None:
    [trace], layout = (
        drawn(steps_with(clip_fraction=0.1))["kl"]["figure"][part] for part in ("data", "layout")
    )

    assert trace["yaxis"] == "y" and trace["name"] == "clipped"
    assert layout["showlegend"] and layout["yaxis"]["tickformat"] == ".1~%"
    assert "yaxis2" not in layout
