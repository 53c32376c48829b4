"""Who is slower than its peers is named once, whatever each has to do; nobody else is."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.guards import Stragglers as Settings
from rljob_api.topology.resolved import resolve
from rljob_runtime.dock.stats import ROOM, DockTraffic
from rljob_runtime.errors import WorkerFailed
from rljob_runtime.record.event_types import StragglerEvent
from rljob_runtime.record.events import EventLog, read_events
from rljob_runtime.record.spans import DeviceWork, StageSpan
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.run.stragglers import (
    LEAST_SECONDS,
    WINDOWS_APART,
    LeaveSlow,
    Straggler,
    StragglerActions,
    StragglerWatch,
    Unit,
    device_work,
    moved_rows,
    slowness,
)
from rljob_runtime.samples.batches import BatchName

SETTINGS = Settings(factor=2.0, steps=3)


def own(seconds: float, tokens: int = 1000, passes: int = 10) -> DeviceWork:
    return DeviceWork(seconds=seconds, tokens=tokens, passes=passes)


def units(*seconds: float) -> dict[Unit, DeviceWork]:
    """Of devices 0, 1, …, all with the same to do."""
    return {(device,): own(each) for device, each in enumerate(seconds)}


def looked(
    watch: StragglerWatch, steps: Sequence[Mapping[Unit, DeviceWork]], state: str = "generate"
) -> list[tuple[int, str, Unit]]:
    """What is told at which step."""
    told = []
    for step, work in enumerate(steps, 1):
        found, over = watch.observe([(state, work)])
        told += [(step, "slow", slow.unit) for slow in found]
        told += [(step, "over", slow.unit) for slow in over]
    return told


def test_each_is_compared_with_the_median_of_the_others() -> None:
    assert slowness(units(1.0, 3.0)) == {(0,): pytest.approx(1 / 3), (1,): pytest.approx(3.0)}
    found = slowness(units(1.0, 2.0, 4.0, 9.0))
    assert found[(3,)] == 9.0 / median([1.0, 2.0, 4.0])
    assert found[(0,)] == 1.0 / median([2.0, 4.0, 9.0])


def test_nobody_is_slow_alone_or_in_what_takes_no_time() -> None:
    assert slowness(units(5.0)) == {}
    assert slowness(units(0.001, LEAST_SECONDS / 2))[(1,)] == 1.0


@given(
    seconds=st.lists(st.floats(0.01, 100), min_size=2, max_size=9),
    tokens=st.lists(st.integers(1, 10**6), min_size=9, max_size=9),
)
def test_the_quick_way_to_the_medians_is_the_plain_one(
    seconds: list[float], tokens: list[int]
) -> None:
    work: dict[Unit, DeviceWork] = {
        (i,): own(s + 1, t, t) for i, (s, t) in enumerate(zip(seconds, tokens, strict=False))
    }

    found = slowness(work)

    for unit, of_unit in work.items():
        others = [o.seconds / o.tokens for other, o in work.items() if other != unit]
        assert found[unit] == pytest.approx(of_unit.seconds / of_unit.tokens / median(others))


@dataclass
class Device:
    """Takes so long for a pass and for a token."""

    a_pass: float
    a_token: float
    times: float = 1.0

    def does(self, tokens: int, passes: int) -> DeviceWork:
        seconds = self.times * (self.a_pass * passes + self.a_token * tokens)
        return own(seconds, tokens, passes)


@st.composite
def shares(draw: st.DrawFn, devices: int) -> list[tuple[int, int]]:
    """Tokens and passes of each device: tails a hundred times the rest, and shares of a few samples."""
    passes = draw(st.lists(st.integers(10, 1000), min_size=devices, max_size=devices))
    samples = draw(st.lists(st.integers(1, 64), min_size=devices, max_size=devices))
    return [(p * s, p) for p, s in zip(passes, samples, strict=True)]


@given(data=st.data(), devices=st.integers(2, 8))
def test_unequal_work_alone_is_never_slowness(data: st.DataObject, devices: int) -> None:
    a_pass, a_token = data.draw(st.floats(0.01, 1)), data.draw(st.floats(0, 1))
    alike = Device(a_pass, a_token)
    steps: list[dict[Unit, DeviceWork]] = [
        {(i,): alike.does(*share) for i, share in enumerate(data.draw(shares(devices)))}
        for _ in range(6)
    ]

    assert looked(StragglerWatch(settings=SETTINGS), steps) == []


@given(
    data=st.data(),
    devices=st.integers(2, 8),
    times=st.floats(2.1, 50),
    begins=st.integers(1, 5),
    lasts=st.integers(0, 9),
)
def test_one_slow_device_is_told_once_and_again_when_it_is_over(
    data: st.DataObject, devices: int, times: float, begins: int, lasts: int
) -> None:
    chosen = data.draw(st.integers(0, devices - 1))
    tokens = data.draw(st.lists(st.integers(10_000, 10**6), min_size=devices, max_size=devices))
    steps: list[dict[Unit, DeviceWork]] = []
    for step in range(1, begins + lasts + 6):
        slow = begins <= step < begins + lasts
        steps.append(
            {
                (i,): Device(0, 1e-4, times if slow and i == chosen else 1).does(each, each)
                for i, each in enumerate(tokens)
            }
        )

    told = looked(StragglerWatch(settings=SETTINGS), steps)

    if lasts < SETTINGS.steps:
        assert told == []
    else:
        unit, end = (chosen,), begins + lasts - 1
        assert told == [
            (begins + SETTINGS.steps - 1, "slow", unit),
            (end + SETTINGS.steps, "over", unit),
        ]


def test_a_step_with_nothing_to_do_says_nothing_and_another_one_breaks_the_row() -> None:
    slow, idle, well = units(1.0, 3.0), units(1.0), units(1.0, 1.0)

    assert looked(StragglerWatch(settings=SETTINGS), [slow, slow, idle, slow]) == [
        (4, "slow", (1,))
    ]
    assert looked(StragglerWatch(settings=SETTINGS), [slow, slow, well, slow, slow]) == []


def test_what_is_told_is_the_median_of_what_was_found() -> None:
    watch = StragglerWatch(settings=SETTINGS)

    looked(watch, [units(1.0, 3.0), units(1.0, 9.0), units(1.0, 4.0)])

    (slow,) = watch.slow.values()
    assert slow == Straggler(state="generate", unit=(1,), factor=4.0, steps=3)


def test_states_are_apart_and_devices_in_the_place_of_others_begin_anew() -> None:
    watch = StragglerWatch(settings=SETTINGS)
    looked(watch, [units(1.0, 3.0)] * 3, "generate")
    looked(watch, [units(1.0, 3.0)] * 2, "update")

    assert [slow.state for slow in watch.forget([1])] == ["generate"]
    assert looked(watch, [units(1.0, 3.0)] * 2, "update") == []
    assert watch.slow == {}


def batch(state: str, *work: DeviceWork | None) -> BatchCalls:
    """Reports of devices 0, 1, …; None of one that failed."""
    calls = BatchCalls(batch=BatchName(kind="train", step=1))
    calls.devices[state] = list(range(len(work)))
    for each in work:
        call: Future[Any] = Future()
        if each is None:
            call.set_exception(WorkerFailed(RuntimeError("gone")))
        else:
            call.set_result(StageSpan(start=0, end=1, device_work=each))
        calls.of_stage.setdefault(state, []).append(call)
    return calls


def test_devices_that_share_a_model_are_one_and_rounds_of_a_step_add_up() -> None:
    calls = batch("generate", None, None, own(1, 10, 4), own(2, 30, 3), own(5, 20, 5), None)
    again = batch("generate", None, None, own(1, 10, 4))
    calls.devices["generate"] += again.devices["generate"]
    calls.of_stage["generate"] += again.of_stage["generate"]

    assert device_work(calls, "generate", 2, 2) == {(2, 3): own(2, 50, 8), (4, 5): own(5, 20, 5)}
    assert device_work(calls, "update", 1, 0) == {}


@pytest.fixture
def stragglers(tmp_path: Path) -> StragglerActions:
    """Of a job of two devices that replaces those that are slow in three steps in a row."""
    spec = SMALL_JOB["spec"] | {"stragglers": {"steps": 3, "action": "replace"}}
    roles = [SimpleNamespace(rank=rank) for rank in range(2)]
    places = [SimpleNamespace(host=f"node-{rank}") for rank in range(2)]
    members: Any = [
        SimpleNamespace(role=role, place=place) for role, place in zip(roles, places, strict=True)
    ]
    return StragglerActions(
        job=resolve(read_job({**SMALL_JOB, "spec": spec})),
        actors=SimpleNamespace(members=members),  # type: ignore[arg-type]
        log=EventLog(tmp_path / "events.jsonl"),
    )


def told(stragglers: StragglerActions) -> list[tuple[int, str, list[str]]]:
    events: list[Any] = list(read_events(stragglers.log.path))
    return [(event.step, event.status, event.hosts) for event in events]


def test_who_is_slow_is_left_once_in_many_steps(stragglers: StragglerActions) -> None:
    def steps(first: int, last: int) -> None:
        for step in range(first, last + 1):
            stragglers.observe(step, batch("update", own(1.0), own(3.0)))

    steps(1, 3)
    with pytest.raises(LeaveSlow) as left:
        stragglers.raise_if_due(3)
    stragglers.mark_replaced(3, [1])
    steps(4, 10)
    stragglers.raise_if_due(10)

    assert [member.role.rank for member in left.value.members] == [1]
    assert str(left.value) == "3.0 times its peers' time in update, 3 steps in a row"
    assert told(stragglers) == [
        (3, "slow", ["node-1"]),
        (3, "replaced", ["node-1"]),
        (6, "slow", ["node-1"]),
    ]
    assert stragglers.due(2 + 3 * WINDOWS_APART) == []
    assert stragglers.due(3 + 3 * WINDOWS_APART) != []


def test_a_device_that_has_left_is_slow_no_more(stragglers: StragglerActions) -> None:
    for step in range(1, 4):
        stragglers.observe(step, batch("update", own(1.0), own(3.0)))
    del stragglers.actors.members[1]
    stragglers.observe(4, batch("update", own(1.0)))

    assert [status for _, status, _ in told(stragglers)] == ["slow", "over"]
    assert stragglers.due(4) == []


def moved(seconds: float, num_bytes: int, *, room: float = 0.0, tcp: int = 1, state: str) -> Any:
    """The call that asks a device what it moved."""
    traffic = DockTraffic(
        rows=4, bytes_written=num_bytes, transfer_seconds=seconds, waits={ROOM: room}, tcp_paths=tcp
    )
    call: Future[Any] = Future()
    call.set_result({state: traffic})
    return call


def test_a_link_is_that_of_all_devices_of_a_host_that_move_the_same() -> None:
    calls = batch("generate")
    calls.moved = {
        0: moved(1.0, 100, state="update"),
        1: moved(2.0, 100, state="generate"),
        2: moved(3.0, 300, state="generate"),
        3: moved(9.0, 400, room=1.0, state="generate"),
        4: moved(0.1, 400, tcp=0, state="generate"),
        5: moved(1.0, 0, state="generate"),
        9: moved(1.0, 100, state="generate"),
    }
    hosts = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b", 5: "b"}

    assert moved_rows(calls, hosts) == [
        {(0,): own(1.0, 100, 4)},
        {(1, 2): own(5.0, 400, 8), (3,): own(8.0, 400, 4)},
        {(4,): own(0.1, 400, 4)},
    ]


def test_a_link_that_lost_more_than_half_its_rate_is_told_and_left(
    stragglers: StragglerActions,
) -> None:
    for step, seconds in enumerate((0.4, 0.9, 0.9, 0.9), 1):
        calls = batch("update", own(1.0), own(1.0))
        calls.moved = {
            0: moved(0.4, 10**9, state="update"),
            1: moved(seconds, 10**9, state="update"),
        }
        stragglers.observe(step, calls)

    with pytest.raises(LeaveSlow, match=r"2\.2 times its peers' time in link, 3 steps in a row"):
        stragglers.raise_if_due(4)
    assert told(stragglers) == [(4, "slow", ["node-1"])]


def test_a_link_between_two_devices_is_told_by_second_copies_and_its_ends_are_not_left(
    stragglers: StragglerActions,
) -> None:
    size = 10**9
    for step, seconds in enumerate((0.4, 0.9, 0.9, 0.9), 1):
        calls = batch("update", own(1.0), own(1.0))
        of_ranks = [{1: own(0.4, size, 1)}, {0: own(seconds, size, 1)}]
        calls.of_stage["update"] = [Future(), Future()]
        for call, received in zip(calls.of_stage["update"], of_ranks, strict=True):
            call.set_result(SimpleNamespace(span=None, received=received))
        stragglers.observe(step, calls)

    stragglers.raise_if_due(4)
    (event,) = read_events(stragglers.log.path)
    assert isinstance(event, StragglerEvent)
    assert (event.step, event.state, event.devices) == (4, "copy", [0, 1])
    assert (event.hosts, event.factor) == (["node-0", "node-1"], 2.25)
