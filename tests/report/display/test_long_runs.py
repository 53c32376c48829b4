"""A display of a long run drops steps; what it sums over the whole run is what the report says, to the digit.

Times and seconds are multiples of 1/64, so that sums do not depend on their order.
"""

import json
from collections.abc import Iterable
from typing import Any

import pytest
from run_events import event_of, history_of

from rljob_runtime.report.display import history as history_module
from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.history import MOST_STEPS, RunHistory

Event = dict[str, Any]
WHOLE_RUN = (
    "status", "result", "busy", "dock", "reshardOverBound", "checkpoints",
)  # fmt: skip


def started(time: float, **more: Any) -> Event:
    return {"time": time, "kind": "run_started", "name": "long", "steps": 6000} | more


def step_events(step: int, start: float) -> list[Event]:
    """Of a step of one second. A rollout device syncs after it began the next step's samples."""
    told = {"time": start + 1, "step": step}

    def phase(name: str, begin: float, end: float, **more: Any) -> Event:
        times = {"start": start + begin, "end": start + end}
        return told | times | {"kind": "phase", "name": name, "role": "rollout", "device": 0} | more

    dock: Event = {
        "states": {"update": {"rows": 32, "wait_seconds": step / 64, "waits": {"reward": 0.25}}},
        "edges": [{"from": "reward", "to": "update", "rows": 32, "bytes": 64 * step}],
        "warehouses": [{"index": 0, "peak_bytes": step % 997, "replicated": step % 3 > 0}],
        "data_paths": {"update": {"shared": step % 2, "tcp": 1}},
        "dropped": {"stale": 4} if step % 250 == 12 else {},
    }
    reshard: Event = {
        "seconds": (step * 37 % 64) / 64,
        "peak_bytes": 4096 + (step % 500 == 13),
        "bound_bytes": 4096,
        "memory": {"seconds": [0.0, 0.5], "update_bytes": [0, 64]},
        **({"probe_gap": step / 64} if step < 40 else {}),
    }
    in_flight = {"received_seconds": (step * 29 % 64 + 1) / 64, "switch_seconds": 1 / 64}
    metrics = {"tokens_per_second": 64.0 * (step % 9), "reward/mean": step / 64}
    return [
        phase("generate", 0, 0.75, waited_seconds=0.1875 * (step % 2)),
        phase("sync", 1.8125, 1.9375),
        phase("update", 0.25, 0.875, role="update"),
        told | reshard | {"kind": "reshard"},
        told | in_flight | {"kind": "in_flight"},
        told | {"kind": "step", "seconds": 1.0, "metrics": metrics, "staleness": {step % 4: 8}},
        told | dock | {"kind": "dock"},
    ]


def events_of(steps: Iterable[int], start: float, *, every: int = 70) -> list[Event]:
    """One step a second after `start`, with checkpoints."""
    events: list[Event] = []
    for place, step in enumerate(steps):
        now = start + place
        events += step_events(step, now)
        if step % every == 0:
            told = {"step": step, "path": f"checkpoints/step-{step}"}
            events.append({"time": now + 1, "kind": "checkpoint"} | told)
    return events


def said_of_the_run(history: RunHistory) -> Any:
    shown = document(history, "")
    staleness = next((c for c in shown["dockCharts"] if c["key"] == "dock-staleness"), None)
    said = {name: shown[name] for name in WHOLE_RUN} | {"staleness": staleness}
    return json.loads(json.dumps(said))


def both(events: list[Event]) -> tuple[RunHistory, RunHistory]:
    """The history of a display that goes on, and the report's."""
    thinned = RunHistory()
    for event in events:
        thinned.add(event_of(event))
        thinned.thin()
    return thinned, history_of(events)


def test_what_is_summed_over_a_long_run_stays_when_steps_are_dropped() -> None:
    thinned, whole = both([started(64.0), *events_of(range(1, 3001), 128.0)])

    assert len(thinned.steps) <= MOST_STEPS < len(whole.steps)
    assert max(len(thinned.reshards), len(thinned.in_flight), len(thinned.done)) < MOST_STEPS + 10
    said = said_of_the_run(thinned)
    assert said == said_of_the_run(whole)
    assert said["busy"][0]["whole"] == pytest.approx(0.75 * 0.875 + 0.125, abs=1e-3)


LIVES = {
    "resumed before what is settled": [started(2000.0, resumed_from=140)],
    "resumed after it": [started(2000.0, resumed_from=280)],
    "resumed at its start": [started(2000.0)],
    "rolled back before what is settled": [
        {"time": 2000.0, "kind": "alarm", "step": 300, "alarm": "collapse", "state": "raised",
         "policy": "rollback", "message": "gone", "rolled_back_to": 210},
    ],
    "resumed, then rolled back to what the first life did": [
        started(2000.0, resumed_from=280),
        {"time": 2001.0, "kind": "alarm", "step": 281, "alarm": "collapse", "state": "raised",
         "policy": "rollback", "message": "gone", "rolled_back_to": 140},
    ],
}  # fmt: skip


@pytest.mark.parametrize("after", [1, 200])
@pytest.mark.parametrize("breaks", LIVES.values(), ids=LIVES.keys())
def test_they_are_right_when_the_run_goes_back(
    monkeypatch, breaks: list[Event], after: int
) -> None:
    monkeypatch.setattr(history_module, "MOST_STEPS", 60)
    back = breaks[-1].get("resumed_from", breaks[-1].get("rolled_back_to", 0))
    steps = range(back + 1, back + 1 + after)
    first = [started(64.0), *events_of(range(1, 301), 128.0)]

    thinned, whole = both([*first, *breaks, *events_of(steps, 2048.0)])

    assert thinned.settled.step > 0 or not back
    said, right = said_of_the_run(thinned), said_of_the_run(whole)
    del said["result"]["reward"], right["result"]["reward"]  # of the steps that are left
    assert said == right
