"""The report's section on resharding, and the line of the live terminal."""

import json
import math
from typing import Any

import pytest
from run_events import event_of, history_of

from rljob_runtime.record.event_types import ReshardEvent
from rljob_runtime.report.display.chart_table import charts
from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.plain import step_line
from rljob_runtime.report.display.reshard_figures import (
    memory_figures,
    standstill_share,
)
from rljob_runtime.report.display.reshard_table import over_bound, reshard_table, reshard_text
from rljob_runtime.report.display.wording import bytes_of

Event = dict[str, Any]
MIB = 2**20


def reshard_event(step: int, **changes: Any) -> Event:
    """As runs with a swap write it: 10 MiB of weights in either layout, buckets of 1 MiB."""
    return {
        "time": 1_760_000_000.0,
        "kind": "reshard",
        "step": step,
        "seconds": 0.02,
        "received_bytes": 8 * MIB,
        "released_bytes": 20 * MIB,
        "kept_bytes": 0,
        "peak_bytes": 11 * MIB,
        "bound_bytes": 12 * MIB,
        "probe_gap": 2e-7,
        "back_seconds": 0.01,
        "overlap": 0.75,
        **changes,
    }


COURSE = {
    "device": 1,
    "seconds": [0.0, 0.005, 0.01, 0.02],
    "update_bytes": [10 * MIB, 6 * MIB, 2 * MIB, 0],
    "rollout_bytes": [0, 4 * MIB, 8 * MIB, 10 * MIB],
    "buffer_bytes": [0, MIB, MIB, 0],
    "cache_bytes": [0, 0, 0, 5 * MIB],
}


@pytest.fixture
def run_of(events_of):
    """A run's history, with a reshard for each step and one before the first."""

    def of(*, steps: int = 3, **changes: Any) -> RunHistory:
        events = events_of(steps=steps, every=None)
        reshards = [reshard_event(step, **changes) for step in range(steps + 1)]
        return history_of([events[0], *reshards, *events[1:]])

    return of


def reshard_of(told: dict[str, Any]) -> ReshardEvent:
    event = event_of(told)
    assert isinstance(event, ReshardEvent)
    return event


def rows_of(history: RunHistory) -> dict[str, Any]:
    return {row["label"]: row for row in reshard_table(history)}


def test_what_is_waited_for_of_the_way_back_is_a_part_of_the_step() -> None:
    share = standstill_share(reshard_of(reshard_event(1)), 0.5)

    assert share == pytest.approx((0.02 + 0.25 * 0.01) / 0.5)
    assert standstill_share(reshard_of(reshard_event(0)), None) is None


def test_the_table_has_median_largest_and_last_over_all_reshards(run_of) -> None:
    history = run_of()
    for step, seconds in enumerate((0.08, 0.02, 0.04, 0.03)):
        history.add(event_of(reshard_event(step, seconds=seconds)))

    row = rows_of(history)["seconds"]

    assert (row["median"], row["largest"], row["last"]) == (pytest.approx(0.035), 0.08, 0.03)
    assert rows_of(history)["received in a second"]["largest"] == 8 * MIB / 0.02


def test_the_table_shows_what_stays_and_what_is_hidden(run_of) -> None:
    rows = rows_of(run_of(swap_seconds=0.01, swap_waited_seconds=0.002, checks=57))

    assert rows["redundant"]["last"] == 0
    assert rows["swap to the host, hidden"]["median"] == pytest.approx(0.8)
    assert rows["checks passed"] | {"note": ""} == {
        "label": "checks passed", "unit": "count", "median": 57, "largest": 57, "last": 57, "note": "",
    }  # fmt: skip
    assert rows["peak of a device"]["largest"] < rows["bound of it"]["largest"]


def test_figures_that_a_log_does_not_tell_are_left_out(run_of) -> None:
    history = run_of(probe_gap=None, overlap=math.nan, back_seconds=None)

    assert {"gather", "select", "swap to the host", "checks passed"}.isdisjoint(rows_of(history))
    assert "distance of log-probs" not in rows_of(history)
    shown = document(history, spec="")
    json.dumps(shown, allow_nan=False)
    assert [chart["key"] for chart in shown["reshardCharts"]] == [
        "reshard-seconds",
        "reshard-share",
        "reshard-bytes",
    ]
    assert shown["reshardMemory"] == []


def test_charts_draw_phases_share_and_peak_over_the_steps(run_of) -> None:
    history = run_of(gather_seconds=0.012, select_seconds=0.008, swap_seconds=0.01)

    drawn = {chart["key"]: chart["figure"]["data"] for chart in charts(history, "reshardCharts")}

    lines = {trace["name"]: trace["y"] for trace in drawn["reshard-seconds"]}
    assert lines["gather"] == [0.012] * 4 and lines["reshard"] == [0.02] * 4
    assert list(lines) == ["reshard", "gather", "select", "swap to the host", "back from the host"]
    share = {trace["name"]: trace["y"] for trace in drawn["reshard-share"]}
    assert share["of the step"][0] is None  # before the first step
    assert share["of the step"][2] == pytest.approx(0.0225 / history.steps[2].seconds)
    peak = {trace["name"]: trace["y"][0] for trace in drawn["reshard-bytes"]}
    assert peak == {"peak": 11 * MIB, "bound": 12 * MIB}


def test_a_devices_course_is_drawn_beside_its_bound_and_what_no_swap_would_hold(run_of) -> None:
    history = run_of(steps=1, memory=COURSE)

    [_, last] = memory_figures(history)

    assert last["step"] == 1
    traces = {trace["name"]: trace for trace in last["figure"]["data"]}
    areas = [t["y"] for t in traces.values() if "stackgroup" in t]
    assert [sum(at) for at in zip(*areas, strict=True)] == [10 * MIB, 11 * MIB, 11 * MIB, 15 * MIB]
    assert "other" not in traces
    assert traces["bound of weights and buffers"]["y"] == [12 * MIB, 12 * MIB]
    assert traces["weights of both layouts, as without a swap"]["y"] == [20 * MIB, 20 * MIB]


def test_a_baseline_has_no_line_of_itself(run_of) -> None:
    history = run_of(steps=1, memory=COURSE, kept_bytes=20 * MIB)

    [_, last] = memory_figures(history)

    names = [trace["name"] for trace in last["figure"]["data"]]
    assert not any("without a swap" in name for name in names)


@pytest.mark.parametrize(
    "memory", [None, {}, {"seconds": [0.0], "update_bytes": [1]}, {"seconds": [0.0, 1.0]}]
)
def test_a_course_that_was_hardly_told_is_not_drawn(run_of, memory) -> None:
    assert memory_figures(run_of(memory=memory)) == []


def test_a_reshard_above_its_bound_is_named(run_of) -> None:
    history = run_of()
    history.add(event_of(reshard_event(2, peak_bytes=13 * MIB)))

    assert over_bound(history) == [2]
    assert document(history, spec="")["reshardOverBound"] == [2]


def test_a_resumed_run_drops_reshards_of_steps_that_it_does_again(run_of) -> None:
    history = run_of()

    history.add(
        event_of({"time": 2e9, "kind": "run_started", "name": "n", "steps": 9, "resumed_from": 1})
    )

    assert sorted(history.reshards) == [0, 1]


def test_a_live_display_keeps_the_course_of_the_last_step_alone(run_of) -> None:
    history = run_of(memory=COURSE)

    history.forget_details(before=3)

    assert [step for step in history.reshards if history.reshards[step].memory] == [3]


def test_a_line_tells_the_last_steps_reshard(run_of) -> None:
    history = run_of()
    share = 100 * 0.0225 / history.steps[3].seconds

    line = reshard_text(history, 3)

    assert line == (
        f"0.02 s · {share:.1f} % of the step · 8 MiB moved · peak 11 MiB of 12 MiB · back 75 % hidden"
    )
    assert "reshard 0.02 s" in step_line(history)


def test_a_run_without_a_reshard_has_no_section(events_of) -> None:
    shown = document(history_of(events_of(steps=2)), spec="")

    assert shown["reshard"] == shown["reshardCharts"] == shown["reshardMemory"] == []


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1000 * 1024, "0.977 MiB"), (8.19e9, "7.63 GiB")],
)
def test_bytes_are_read_in_three_digits(size: float, text: str) -> None:
    assert bytes_of(size) == text
