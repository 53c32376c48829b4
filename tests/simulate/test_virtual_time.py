"""Virtual time passes in order, and stops where the driver is to look."""

from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from pathlib import Path

import pytest

import rljob_runtime
from rljob_runtime.errors import DeadlineError, WorkerFailed
from rljob_runtime.processes import clock as run_clock
from rljob_runtime.processes.calls import answers, ended_of
from rljob_runtime.simulate.virtual_clock import VirtualCall, VirtualClock, Work
from rljob_runtime.simulate.workers import SimulatedWorkers


class Sleeper:
    """A worker that works for as long as it is asked to."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock

    def work(self, seconds: float) -> Work:
        yield seconds
        return self.clock.seconds

    def fail(self, seconds: float) -> Work:
        yield seconds
        raise DeadlineError("it took too long", stage="work")

    def at_once(self) -> str:
        return "here"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1000.0)


@pytest.fixture
def workers(clock: VirtualClock) -> SimulatedWorkers:
    return SimulatedWorkers(clock, {Sleeper: lambda: Sleeper(clock)})


def test_calls_of_one_worker_follow_each_other_and_those_of_two_run_beside(
    clock: VirtualClock, workers: SimulatedWorkers
) -> None:
    one, other = (workers.start(Sleeper, home={}) for _ in range(2))

    with run_clock.on_clock(clock):
        ended = answers("sleeper", [one.work(3.0), one.work(2.0), other.work(4.0), other.at_once()])

    assert ended == [3.0, 5.0, 4.0, "here"]
    assert clock.unix_seconds() == 1005.0


@pytest.mark.parametrize(
    ("until", "seconds"), [(FIRST_COMPLETED, 1.0), (FIRST_EXCEPTION, 2.0), (ALL_COMPLETED, 3.0)]
)
def test_a_wait_ends_as_one_for_futures_does(
    clock: VirtualClock, workers: SimulatedWorkers, until: str, seconds: float
) -> None:
    calls = [
        workers.start(Sleeper, home={}).work(1.0),
        workers.start(Sleeper, home={}).fail(2.0),
        workers.start(Sleeper, home={}).work(3.0),
    ]

    with run_clock.on_clock(clock):
        ended, _ = ended_of(calls, seconds=60.0, until=until)

    assert clock.seconds == seconds
    assert ended == calls[: int(seconds)]


def test_a_wait_for_groups_ends_with_the_first_whole_one(
    clock: VirtualClock, workers: SimulatedWorkers
) -> None:
    calls = [workers.start(Sleeper, home={}).work(seconds) for seconds in (1.0, 5.0, 2.0, 3.0)]

    with run_clock.on_clock(clock):
        ended, _ = ended_of(calls, seconds=60.0, groups=[calls[:2], calls[2:]])

    assert clock.seconds == 3.0
    assert ended == [calls[0], calls[2], calls[3]]


def test_an_argument_may_be_an_earlier_call(workers: SimulatedWorkers, clock: VirtualClock) -> None:
    first = workers.start(Sleeper, home={}).work(2.0)

    with run_clock.on_clock(clock):
        (ended,) = answers("sleeper", [workers.start(Sleeper, home={}).work(first)])

    assert ended == 4.0


def test_a_wait_without_an_end_passes_its_time(clock: VirtualClock) -> None:
    with (
        run_clock.on_clock(clock),
        pytest.raises(DeadlineError, match="did not answer within 20 s"),
    ):
        answers("nobody", [VirtualCall()], seconds=20.0)

    assert clock.seconds == 20.0


def test_who_dies_owes_nothing_but_errors(clock: VirtualClock, workers: SimulatedWorkers) -> None:
    worker = workers.start(Sleeper, home={})
    owed = [worker.work(5.0), worker.work(1.0)]

    workers.end(worker)
    owed.append(worker.work(1.0))

    assert workers.dead([worker]) == [True]
    assert [type(call.exception()) for call in owed] == [WorkerFailed] * 3
    with run_clock.on_clock(clock):
        run_clock.sleep(10.0)  # what it was at comes to nothing
    assert clock.seconds == 10.0


@pytest.mark.parametrize(
    "module",
    [
        "course", "delivery", "driver", "elastic", "joining", "left_out", "loop", "lost_rollouts", "recovery",
        "run_ahead", "scale_requests", "stages", "stragglers",
    ],
)  # fmt: skip
def test_what_decides_knows_the_clock_of_the_run_alone(module: str) -> None:
    text = (Path(rljob_runtime.__file__).parent / "run" / f"{module}.py").read_text()

    assert "import time" not in text
