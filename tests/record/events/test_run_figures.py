"""What Prometheus scrapes from a driver."""

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from run_events import event_of
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.report.run_figures import RunFigures
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.status_server import StatusServer

WORDS = {"policy": "warn", "message": "cut"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def figures() -> RunFigures:
    return RunFigures()


@pytest.fixture
def server(figures: RunFigures, tmp_path: Path) -> Iterator[StatusServer]:
    requests = ScaleRequests(resolve(read_job(SMALL_JOB)), clock=lambda: 7.0)
    made = StatusServer(
        port=0,
        token="t",
        total_steps=9,
        requests=requests,
        figures=figures,
        run=LocalRun(tmp_path),
        stacks=StacksRequests(),
        save=threading.Event(),
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


def of(name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
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


def step_event(step: int, **changes: Any) -> dict[str, Any]:
    event = {"kind": "step", "time": 100.0 + 10 * step, "step": step, "seconds": 10.0}
    return {**event, "metrics": {}, **changes}


def started(**facts: Any) -> dict[str, Any]:
    return {"kind": "run_started", "time": 100.0, "name": "small", "steps": 9, **facts}


def phase(role: str, device: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    times = {"time": end, "start": start, "end": end, **more}
    return {"kind": "phase", "name": "update", "step": 1, "role": role, "device": device, **times}


def test_a_run_that_has_not_begun_has_nothing_to_tell(server: StatusServer) -> None:
    assert scrape(server) == {}


def test_flow_waits_and_losses_are_counted_over_the_steps(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.on_event(event_of(dock_event()))
    figures.on_event(event_of(dock_event(dropped={"lost": 8}, regenerated=8)))

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
    figures.on_event(event_of(dock_event()))
    once = scrape(server)
    held = {"index": 0, "peak_bytes": 400, "capacity_bytes": 1000}
    figures.on_event(
        event_of(dock_event(warehouses=[{**held, "replicated": False, "times_alone": 1}]))
    )

    told = scrape(server)

    assert told[of("rljob_dock_peak_bytes", warehouse="0")] == 400
    assert told[of("rljob_dock_capacity_bytes", warehouse="0")] == 1000
    assert told[of("rljob_dock_replicated", warehouse="0")] == 0
    assert of("rljob_dock_replicated", warehouse="0") not in once


def test_rows_at_each_state_are_those_of_the_last_look(
    server: StatusServer, figures: RunFigures
) -> None:
    figures.set_rows({"reward": RowCounts(lacking=5, ready=2, leased=1, acknowledged=0)})
    figures.set_rows({"reward": RowCounts(lacking=0, ready=6, leased=1, acknowledged=1)})

    told = scrape(server)

    kinds = ("lacking", "ready", "leased")
    rows = {kind: told[of("rljob_dock_rows", state="reward", rows=kind)] for kind in kinds}
    assert rows == {"lacking": 0, "ready": 6, "leased": 1}


def test_ages_of_rows_are_a_histogram(server: StatusServer, figures: RunFigures) -> None:
    figures.on_event(event_of(step_event(1, staleness={"0": 6, "3": 2})))
    figures.on_event(event_of(step_event(2, staleness={"20": 1})))

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
    alarm = {"kind": "alarm", "step": 3, "alarm": "truncation", "state": "raised"} | WORDS

    figures.on_event(event_of(alarm))
    before = scrape(server)
    figures.on_event(event_of({**alarm, "state": "cleared"}))
    figures.on_event(event_of({**alarm, "rolled_back_to": 1}))
    figures.on_event(event_of({**alarm, "state": "cleared"}))
    after = scrape(server)

    assert before[of("rljob_alarm", alarm="truncation")] == 1
    assert after[of("rljob_alarm", alarm="truncation")] == 0
    assert after[of("rljob_alarms_total", alarm="truncation")] == 2
    assert after[of("rljob_rollbacks_total", alarm="truncation")] == 1


def test_slow_devices_are_counted_each_once(figures: RunFigures, server: StatusServer) -> None:
    slow = {
        "kind": "straggler",
        "step": 9,
        "status": "slow",
        "hosts": [],
        "factor": 2.6,
        "steps": 5,
    }
    for state in ("generate", "update"):
        figures.on_event(event_of({**slow, "state": state, "devices": [3]}))
    both = scrape(server)
    for state in ("generate", "update"):
        figures.on_event(event_of({**slow, "state": state, "devices": [3], "status": "over"}))
    after = scrape(server)

    assert (both[of("rljob_slow_devices")], after[of("rljob_slow_devices")]) == (1, 0)
    assert after[of("rljob_stragglers_total", state="update")] == 1


def test_replicas_that_train_are_counted_beside_those_wanted(
    figures: RunFigures, server: StatusServer
) -> None:
    figures.on_event(event_of({"kind": "replicas", "step": 9, "live": 3, "wanted": 4}))

    found = scrape(server)

    assert found[of("rljob_update_replicas")] == 3
    assert found[of("rljob_update_replicas_wanted")] == 4


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
    figures.on_event(event_of(reshard_event()))
    figures.on_event(
        event_of(
            reshard_event(step=2, peak_bytes=110, overlap=0.75, checks=40, gather_seconds=0.375)
        )
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
    figures.on_event(event_of(reshard_event(overlap=None)))

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
    figures.on_event(event_of(told))
    figures.on_event(
        event_of({**told, "step": 4, "hidden_seconds": None, "check_seconds": 0.125, "checks": 9})
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


def test_a_steps_metrics_have_the_events_names(figures: RunFigures, server: StatusServer) -> None:
    metrics = {
        "tps_eq5": 50.5,
        "tokens_per_second": 40.0,
        "picture_tokens_per_second": 24.0,
        "reward/mean": 0.5,
        "reward/correct": 0.25,
        "mismatch/kl": 0.125,
        "memory/peak_bytes/1": 64.0,
        "critic/explained_variance": 0.75,
    }

    figures.on_event(
        event_of(step_event(1, metrics=metrics, phases={"generate": 4.0, "update": 5.0}))
    )
    figures.on_event(event_of(step_event(2, metrics=metrics, phases={"generate": 1.0})))

    told = scrape(server)
    assert told[of("rljob_tps_eq5")] == 50.5
    assert told[of("rljob_tokens_per_second")] == 40
    assert told[of("rljob_picture_tokens_per_second")] == 24
    assert told[of("rljob_reward_mean")] == 0.5
    assert told[of("rljob_reward", reward="correct")] == 0.25
    assert told[of("rljob_mismatch_kl")] == 0.125
    assert told[of("rljob_memory_peak_bytes", device="1")] == 64
    assert told[of("rljob_step_metric", metric="critic/explained_variance")] == 0.75
    assert told[of("rljob_phase_seconds_total", phase="generate")] == 5
    assert told[of("rljob_step_seconds_total")] == 20
    assert told[of("rljob_steps_total")] == 2
    assert told[of("rljob_last_step_timestamp_seconds")] == 120


def test_a_metric_that_the_last_step_lacks_or_that_was_not_finite_is_not_told(
    figures: RunFigures, server: StatusServer
) -> None:
    figures.on_event(event_of(step_event(1, metrics={"loss": 1.0, "kl": 0.5, "turns/mean": 2.0})))
    figures.on_event(event_of(step_event(2, metrics={"loss": None})))

    told = {name for name, _ in scrape(server)}

    assert "rljob_step" in told
    assert not {"rljob_loss", "rljob_kl", "rljob_step_metric"} & told


def test_bubbles_are_the_share_of_the_last_ten_steps_without_work(
    figures: RunFigures, server: StatusServer
) -> None:
    figures.on_event(event_of(phase("device", 0, 100, 105, waited_seconds=1.0)))
    figures.on_event(event_of(phase("device", 0, 104, 106)))
    figures.on_event(event_of(phase("reward", 0, 100, 101)))
    figures.on_event(event_of(step_event(1)))
    first = scrape(server)
    for step in range(2, 13):
        figures.on_event(event_of(step_event(step)))
    last = scrape(server)

    name, device = "rljob_bubble_ratio", {"role": "device", "device": "0"}
    assert first[of(name, **device)] == pytest.approx(1 - 6 / 10)
    assert first[of(name, role="reward", device="0")] == pytest.approx(0.9)
    assert last[of(name, **device)] == 1
    assert last[of("rljob_busy_seconds_total", **device)] == pytest.approx(6)


def test_a_run_tells_what_it_is_and_its_counters_begin_at_zero(
    figures: RunFigures, server: StatusServer
) -> None:
    path = 'C:\\models\\"tiny"'
    figures.on_event(
        event_of(started(model=path, algorithm="grpo", devices=2, device_memory_bytes=1024))
    )

    told = scrape(server)

    facts = {"name": "small", "model": path, "algorithm": "grpo", "placement": ""}
    assert told[of("rljob_run_info", **facts, rollout_engine="", update_engine="")] == 1
    assert told[of("rljob_spec_steps")] == 9
    assert told[of("rljob_devices")] == 2
    assert told[of("rljob_memory_limit_bytes")] == 1024
    assert told[of("rljob_hangs_total")] == 0
    assert told[of("rljob_dock_dropped_rows_total", reason="lost")] == 0


def test_evaluations_are_told_by_suite(figures: RunFigures, server: StatusServer) -> None:
    suite = {"n": 4, "accuracy": 0.25, "reward": 0.5, "pass_at_k": 0.75}
    told = {"kind": "evaluation", "step": 4, "accuracy": 0.5, "n": 8, "suites": {"hard": suite}}
    figures.on_event(event_of(told))

    found = scrape(server)

    assert found[of("rljob_evaluation_step")] == 4
    assert found[of("rljob_evaluation_accuracy", suite="")] == 0.5
    assert found[of("rljob_evaluation_pass_at_k", suite="hard")] == 0.75
    assert of("rljob_evaluation_pass_at_k", suite="") not in found


def test_trouble_is_counted(figures: RunFigures, server: StatusServer) -> None:
    figures.on_event(event_of({"kind": "warning", "time": 1.0, "message": "a copy failed"}))
    hang = {"kind": "hang", "time": 1.0, "stage": "update", "message": "", "folder": ""}
    figures.on_event(event_of(hang))
    figures.on_event(event_of({**hang, "stage": "asked"}))
    error = {"kind": "reward_error", "time": 1.0, "step": 1, "reward": "judge", "message": ""}
    figures.on_event(event_of(error))
    figures.on_event(event_of({**error, "count": 4}))
    figures.on_event(event_of({"kind": "checkpoint", "time": 1.0, "step": 3, "path": "x"}))
    dead = {"devices": [1, 2], "roles": ["update", "update"], "others": ["reward-0"], "hosts": []}
    recovery = {"kind": "recovery", "time": 1.0, "step": 3, "source": "peers", "message": ""}
    figures.on_event(event_of({**recovery, **dead, "seconds": 2.5}))

    told = scrape(server)

    assert told[of("rljob_recoveries_total", role="update")] == 2
    assert told[of("rljob_recoveries_total", role="reward")] == 1
    assert told[of("rljob_recovery_seconds_total")] == 2.5
    assert told[of("rljob_warnings_total")] == 1
    assert told[of("rljob_hangs_total")] == 1
    assert told[of("rljob_reward_errors_total", reward="judge")] == 5
    assert told[of("rljob_checkpoint_step")] == 3
