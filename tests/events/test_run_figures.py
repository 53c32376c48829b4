"""What Prometheus scrapes from a driver."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from whole_runs import SMALL_JOB

from rljob_api.load import read_job
from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.run_figures import RunFigures
from rljob_runtime.scale_desk import ScaleDesk
from rljob_runtime.status_server import StatusServer
from rljob_runtime.watch.runs import LocalRun

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def figures() -> RunFigures:
    return RunFigures()


@pytest.fixture
def server(figures: RunFigures, tmp_path: Path) -> Iterator[StatusServer]:
    desk = ScaleDesk(read_job(SMALL_JOB), clock=lambda: 7.0)
    made = StatusServer(
        port=0,
        token="t",
        total_steps=9,
        desk=desk,
        figures=figures,
        run=LocalRun(tmp_path),
        host="127.0.0.1",
    )
    yield made
    made.close()


def scrape(server: StatusServer) -> Samples:
    """What a scraper without any token reads."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def dock_event(**changes: Any) -> dict[str, Any]:
    moved = {"rows": 8, "bytes_read": 64, "bytes_written": 0, "wait_seconds": 1.75}
    return {
        "kind": "dock",
        "step": 1,
        "warehouses": [{"index": 0, "peak_bytes": 500, "capacity_bytes": 1000}],
        "states": {"update": {**moved, "waits": {"generate": 1.5, "reward": 0.25}}},
        "edges": [{"from": "generate", "to": "update", "rows": 8, "bytes": 64}],
        "data_paths": {"update": {"shared": 1, "tcp": 0}},
        **changes,
    }


def test_a_run_that_has_not_begun_has_nothing_to_tell(server: StatusServer) -> None:
    assert scrape(server) == {}


def test_flow_waits_and_losses_are_counted_over_the_steps(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.on_event(dock_event())
    figures.on_event(dock_event(dropped={"lost": 8}, regenerated=8))

    told = scrape(server)

    ends = {"writer": "generate", "reader": "update"}
    assert told[of("rljob_dock_read_bytes_total", **ends)] == 128
    assert told[of("rljob_dock_read_rows_total", **ends)] == 16
    assert told[of("rljob_dock_wait_seconds_total", state="update", awaited="generate")] == 3.0
    assert told[of("rljob_dock_wait_seconds_total", state="update", awaited="reward")] == 0.5
    assert told[of("rljob_dock_done_rows_total", state="update")] == 16
    assert told[of("rljob_dock_dropped_rows_total", reason="lost")] == 8


def test_warehouses_tell_the_last_step_and_whether_rows_are_held_twice(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.on_event(dock_event())
    once = scrape(server)
    held = {"index": 0, "peak_bytes": 400, "capacity_bytes": 1000}
    figures.on_event(dock_event(warehouses=[{**held, "replicated": False, "times_alone": 1}]))

    told = scrape(server)

    assert told[of("rljob_dock_peak_bytes", warehouse="0")] == 400
    assert told[of("rljob_dock_capacity_bytes", warehouse="0")] == 1000
    assert told[of("rljob_dock_replicated", warehouse="0")] == 0
    assert of("rljob_dock_replicated", warehouse="0") not in once


def test_rows_at_each_state_are_those_of_the_last_look(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.look({"reward": RowCounts(lacking=5, ready=2, leased=1, acknowledged=0)})
    figures.look({"reward": RowCounts(lacking=0, ready=6, leased=1, acknowledged=1)})

    told = scrape(server)

    kinds = ("lacking", "ready", "leased")
    rows = {kind: told[of("rljob_dock_rows", state="reward", rows=kind)] for kind in kinds}
    assert rows == {"lacking": 0, "ready": 6, "leased": 1}


def test_ages_of_rows_are_a_histogram(server: StatusServer, figures: RunFigures) -> None:
    figures.on_event({"kind": "step", "step": 1, "metrics": {}, "staleness": {"0": 6, "3": 2}})
    figures.on_event({"kind": "step", "step": 2, "metrics": {}, "staleness": {"20": 1}})

    told = scrape(server)

    buckets = {
        dict(labels)["le"]: value
        for (name, labels), value in told.items()
        if name == "rljob_dock_row_age_versions_bucket"
    }
    bounds = ("0", "1", "2", "4", "8", "16", "+Inf")
    assert buckets == dict(zip(bounds, (6, 6, 6, 8, 8, 8, 9), strict=True))
    assert told[of("rljob_dock_row_age_versions_sum")] == 26
    assert told[of("rljob_dock_row_age_versions_count")] == 9
    assert told[of("rljob_step")] == 2


def test_alarms_are_counted_and_shown_while_they_last(
    figures: RunFigures, server: StatusServer
) -> None:
    alarm = {"kind": "alarm", "step": 3, "alarm": "truncation", "state": "raised"}

    figures.on_event(alarm)
    before = scrape(server)
    figures.on_event({**alarm, "state": "cleared"})
    figures.on_event({**alarm, "rolled_back_to": 1})
    figures.on_event({**alarm, "state": "cleared"})
    after = scrape(server)

    assert before[of("rljob_alarm", alarm="truncation")] == 1
    assert after[of("rljob_alarm", alarm="truncation")] == 0
    assert after[of("rljob_alarms_total", alarm="truncation")] == 2
    assert after[of("rljob_rollbacks_total", alarm="truncation")] == 1


def reshard_event(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "reshard",
        "step": 1,
        "seconds": 0.5,
        "received_bytes": 64,
        "released_bytes": 128,
        "kept_bytes": 0,
        "peak_bytes": 100,
        "bound_bytes": 120,
        "back_seconds": 0.25,
        **changes,
    }


def test_reshards_add_up_their_time_and_bytes_and_tell_the_last_peak(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.on_event(reshard_event())
    figures.on_event(
        reshard_event(step=2, peak_bytes=110, overlap=0.75, checks=40, gather_seconds=0.375)
    )

    told = scrape(server)

    assert told[of("rljob_reshards_total")] == 2
    assert told[of("rljob_reshard_seconds_total", part="all")] == 1.0
    assert told[of("rljob_reshard_seconds_total", part="back")] == 0.5
    assert told[of("rljob_reshard_seconds_total", part="gather")] == 0.375
    assert told[of("rljob_reshard_moved_bytes_total")] == 128
    assert told[of("rljob_reshard_checks_total")] == 40
    assert told[of("rljob_reshard_peak_bytes")] == 110
    assert told[of("rljob_reshard_bound_bytes")] == 120
    assert told[of("rljob_reshard_redundant_bytes")] == 0
    assert told[of("rljob_reshard_released_bytes")] == 128
    assert told[of("rljob_reshard_overlap_ratio")] == 0.75


def test_what_a_reshard_does_not_tell_is_no_figure(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.on_event(reshard_event(overlap=None))

    told = scrape(server)

    assert of("rljob_reshard_overlap_ratio") not in told
    assert of("rljob_reshard_checks_total") not in told
    assert of("rljob_reshard_seconds_total", part="swap") not in told


def test_weights_in_flight_add_up_their_time_tokens_and_bytes_and_tell_their_version(
    server: StatusServer, figures: RunFigures
) -> None:
    told = {
        "kind": "in_flight",
        "step": 3,
        "received_seconds": 0.5,
        "switch_seconds": 0.25,
        "hidden_seconds": 0.375,
        "tokens": 40,
        "received_bytes": 64,
    }
    figures.on_event(told)
    figures.on_event(
        {**told, "step": 4, "hidden_seconds": None, "check_seconds": 0.125, "checks": 9}
    )

    found = scrape(server)

    name = "rljob_reshard_in_flight_seconds_total"
    parts = {part: found[of(name, part=part)] for part in ("receive", "hidden", "switch", "check")}
    assert parts == {"receive": 1.0, "hidden": 0.375, "switch": 0.5, "check": 0.125}
    assert found[of("rljob_reshard_in_flight_total")] == 2
    assert found[of("rljob_reshard_in_flight_version")] == 4
    assert found[of("rljob_reshard_in_flight_tokens_total")] == 80
    assert found[of("rljob_reshard_checks_total")] == 9
    assert found[of("rljob_reshard_in_flight_bytes_total")] == 128
