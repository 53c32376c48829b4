"""Which rewards and which devices a chart shows."""

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
