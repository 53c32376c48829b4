"""How long workers had work, told phase by phase, against the shares of the whole time."""

import random
from typing import Any

import pytest

from rljob_runtime.busy_seconds import BusySeconds
from rljob_runtime.display.busy import busy_workers
from rljob_runtime.display.history import RunHistory


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
        busy.add(phase)

    found = {" ".join(worker): seconds for worker, seconds in busy.seconds().items()}

    whole = busy_workers(RunHistory.of(told), since=0.0, until=100.0)
    assert found == pytest.approx({worker.worker: 100 * worker.whole for worker in whole})


def test_work_that_is_told_late_counts_where_it_was_done() -> None:
    busy = BusySeconds()
    for start, end in ((0, 10), (20, 30), (12, 14), (5, 8), (9, 21)):
        busy.add({"name": "update", "start": start, "end": end})

    assert busy.seconds() == {("update", ""): 30}
