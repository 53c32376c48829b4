"""How long workers had work, told phase by phase, against the shares of the whole time."""

import random
from typing import Any

import pytest
from run_events import event_of, history_of

from rljob_runtime.record.event_types import PhaseEvent
from rljob_runtime.report.busy_seconds import BusySeconds
from rljob_runtime.report.display.busy import busy_workers


def phases(seed: int) -> list[dict[str, Any]]:
    """Of two workers over a hundred seconds, some at the same time, told in no order of time."""
    rng, found = random.Random(seed), []
    for number in range(60):
        start = rng.uniform(0, 95)
        end = start + rng.uniform(0, 5)
        worker = {"role": rng.choice(("update", "rollout")), "device": 0, "step": 1 + number // 6}
        times = {"start": start, "end": end, "time": end}
        waited = rng.choice((0.0, (end - start) * rng.random()))
        found.append({"kind": "phase", "name": "n", **worker, **times, "waited_seconds": waited})
    return found


@pytest.mark.parametrize("seed", range(10))
def test_the_seconds_of_a_whole_run_are_the_reports(seed: int) -> None:
    told, busy = phases(seed), BusySeconds()
    for phase in told:
        event = event_of(phase)
        assert isinstance(event, PhaseEvent)
        busy.add(event)

    found = {" ".join(worker): seconds for worker, seconds in busy.seconds().items()}

    whole = busy_workers(history_of(told), since=0.0, until=100.0)
    assert found == pytest.approx({worker.worker: 100 * worker.whole for worker in whole})


def test_work_that_is_told_late_counts_where_it_was_done() -> None:
    busy = BusySeconds()
    for start, end in ((0, 10), (20, 30), (12, 14), (5, 8), (9, 21)):
        busy.add(PhaseEvent(name="update", step=1, start=start, end=end))

    assert busy.seconds() == {("update", ""): 30}


def step(busy: BusySeconds, end: float, *devices: int) -> dict[tuple[str, str], float]:
    """Each device worked in the second half of a step of ten seconds."""
    for device in devices:
        busy.add(
            PhaseEvent(
                name="generate", step=1, start=end - 5, end=end, role="device", device=device
            )
        )
    return busy.bubbles(end)


def test_a_device_that_came_is_told_from_then_on_and_one_that_left_no_more() -> None:
    busy, of_0, of_1 = BusySeconds(), ("device", "0"), ("device", "1")
    for end in range(10, 200, 10):
        both = step(busy, end, 0)
    assert both == {of_0: pytest.approx(0.5)}

    came = step(busy, 200, 0, 1)
    idle = step(busy, 205, 0)
    busy.resize(205)
    left = step(busy, 210, 0)

    assert came == {of_0: pytest.approx(0.5), of_1: 0.0}
    assert idle[of_1] == pytest.approx(0.5)
    assert left.keys() == {of_0}
