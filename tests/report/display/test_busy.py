"""How much of the time each worker had work, against phases whose shares are plain arithmetic."""

from typing import Any

import pytest
from run_events import history_of

from rljob_runtime.report.display.busy import Busy, busy_workers
from rljob_runtime.report.display.document import document


def phase(name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    role = {"role": "device", "device": 0, **more}
    told = {"time": end, "kind": "phase", "step": 1, "name": name, "start": start, "end": end}
    return told | role


def shares_of(*phases: dict[str, Any]) -> list[Busy]:
    return busy_workers(history_of(phases), since=100.0, until=110.0)


def test_a_workers_share_is_its_phases_over_the_time() -> None:
    generate, update = phase("generate", 101, 105), phase("update", 106, 109)

    (busy,) = shares_of(update, generate)

    assert busy.worker == "device 0"
    assert busy.phases == pytest.approx({"generate": 0.4, "update": 0.3})
    assert busy.whole == pytest.approx(0.7)


def test_waiting_for_samples_is_no_work() -> None:
    (busy,) = shares_of(phase("update", 100, 110, waited_seconds=6.0))

    assert busy.whole == pytest.approx(0.4)


def test_only_what_lies_between_the_times_counts() -> None:
    early, late = phase("update", 98, 102, waited_seconds=2.0), phase("update", 109, 113)

    (busy,) = shares_of(early, phase("update", 90, 100), late, phase("update", 110, 111))

    assert busy.phases == pytest.approx({"update": (2 * 0.5 + 1) / 10})


def test_phases_at_the_same_time_do_not_make_a_worker_more_than_busy() -> None:
    (busy,) = shares_of(phase("generate", 100, 108), phase("sync", 104, 109))

    assert busy.phases == pytest.approx({"generate": 0.8, "sync": 0.5})
    assert busy.whole == pytest.approx(0.9)


def test_each_worker_has_the_timelines_name() -> None:
    found = shares_of(
        phase("generate", 100, 105, role="rollout", device=1),
        phase("reward", 100, 101, role="reward", device=0),
        phase("update", 105, 110, role="update", device=0),
    )

    assert {busy.worker: busy.whole for busy in found} == pytest.approx(
        {"reward 0": 0.1, "rollout 1": 0.5, "update 0": 0.5}
    )


def test_the_report_leaves_out_the_time_between_two_lives_of_a_run() -> None:
    started = {"kind": "run_started", "name": "run", "steps": 2}
    step = {"kind": "step", "metrics": {}}
    events = [
        started | {"time": 100.0},
        phase("update", 100, 101),
        step | {"time": 101.0, "step": 1, "seconds": 1.0},
        started | {"time": 200.0, "resumed_from": 1},
        phase("update", 203, 204) | {"step": 2},
        step | {"time": 205.0, "step": 2, "seconds": 4.0},
    ]

    shown = document(history_of(events), "")["busy"]

    assert shown == [{"worker": "device 0", "phases": {"update": 0.25}, "whole": 0.25}]
