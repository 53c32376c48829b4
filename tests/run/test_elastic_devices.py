"""Rollout devices that come, go and fail, as the driver handles them between its steps.

The devices are stand-ins without a model, in this process; what fails is written in their role's plan.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stand_in_devices import Plan, Run
from workers_here import WorkersHere

from rljob_runtime.processes.dead_devices import dead_devices

DEVICES = 5


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """begin({2: "dies"}): a run whose device 2 dies when it starts."""
    runs = []

    def start(plan: Plan | None = None, **sizes: Any) -> Run:
        def workers(per_node: int) -> WorkersHere:
            return WorkersHere(DEVICES // per_node)

        runs.append(Run(tmp_path, plan or {}, workers=workers, **sizes))
        return runs[-1]

    yield start
    for started in runs:
        started.end()


def test_a_device_joins_between_two_steps_and_leaves_between_two_others(begin) -> None:
    run = begin()

    run.requests.ask(2)
    run.elastic.poll()
    joining = run.requests.report()
    run.step_until(lambda: run.requests.report().ready == 2)
    grown, group, free = run.requests.report(), run.group(), run.pool.workers.free
    run.requests.ask(1)
    draining = run.requests.report().draining
    run.step()

    assert (joining.wanted, joining.ready, joining.joining) == (2, 1, 1)
    assert (grown.joining, grown.hosts) == (0, ["host-0", "host-1", "host-2"])
    assert group == [0, 1, 2]
    assert run.synced == [[0, 1, 2]]  # the weights go to who joined; who stays has them
    assert [place.device for place in draining] == [2]
    assert run.group() == [0, 1]
    assert run.requests.report().hosts == ["host-0", "host-1"]
    events = run.events("resize")
    assert [(e["from"], e["to"], e["given_up"]) for e in events] == [(1, 2, 0), (2, 1, 0)]
    assert events[1]["step"] == run.steps
    assert run.pool.workers.free == free + 1


def test_a_failed_run_names_the_devices_whose_processes_died(begin) -> None:
    run = begin()
    before = dead_devices(run.actors)

    run.pool.workers.end(run.actors.members[1].worker)

    assert (before, dead_devices(run.actors)) == ("", "device 1 (host-1) died")


def test_all_devices_of_a_node_may_leave_at_once(begin) -> None:
    run = begin(per_node=2, prompts=12)

    run.requests.ask(3)
    run.step_until(lambda: run.requests.report().ready == 3)
    nodes = sorted(run.pool.nodes)
    run.requests.ask(1)
    run.step()

    assert nodes == [0, 1]
    assert sorted(run.pool.nodes) == [0]
    assert run.group() == [0, 1]


def test_steps_go_on_while_there_is_no_place(begin) -> None:
    run = begin(prompts=10)

    run.requests.ask(10)
    run.step_until(
        lambda: run.requests.report().ready == 2
    )  # 10 prompts are not for 3 or 4 devices
    waiting = run.requests.report()
    run.requests.ask(2)
    run.step()

    assert (waiting.wanted, waiting.ready, waiting.joining) == (10, 2, 8)
    assert run.requests.report().joining == 0
    assert (len(run.group()), run.group()[:2]) == (3, [0, 1])
    assert sorted(run.pool.nodes) == run.group()


def test_devices_that_share_a_model_come_and_go_together(begin) -> None:
    run = begin(together=2)
    before = run.pool.workers.free

    run.requests.ask(4)
    run.step_until(lambda: run.requests.report().ready == 4)
    met = [member.worker.met_at().result(60) for member in run.actors.members]
    run.requests.ask(2)
    run.step()

    assert met == [None, *["world of 2 with device 1"] * 2, *["world of 2 with device 3"] * 2]
    assert run.group() == [0, 1, 2]
    events = run.events("resize")
    assert [(event["from"], event["to"]) for event in events] == [(2, 4), (4, 2)]
    assert run.pool.workers.free == before


def test_a_model_whose_devices_do_not_all_come_is_given_up_whole(begin) -> None:
    run = begin({4: "fails to load"}, together=2)
    before = run.pool.workers.free

    run.requests.ask(4)
    run.step_until(lambda: bool(run.requests.report().message))

    assert (run.requests.report().ready, run.requests.report().joining) == (2, 0)
    warnings = [event["message"] for event in run.events("warning")]
    assert len(warnings) == 3
    assert all("rollout devices 3 and 4 did not join" in message for message in warnings)
    assert run.group() == [0, 1, 2]
    assert run.pool.workers.free == before


@pytest.mark.parametrize(
    ("failure", "told"),
    [("dies", "died"), ("fails to load", "no such weights"), ("dies when it joins", "died")],
)
def test_a_device_that_fails_on_its_way_in_is_tried_three_times_and_given_up(
    begin, failure: str, told: str
) -> None:
    run = begin({2: failure})

    run.requests.ask(2)
    run.step_until(lambda: bool(run.requests.report().message))
    report = run.requests.report()

    assert (report.wanted, report.ready, report.joining) == (2, 1, 0)
    assert report.message == "3 devices failed to join; see the warnings"
    assert run.group() == [0, 1]
    warnings = [event["message"] for event in run.events("warning")]
    assert len(warnings) == 3
    assert all(told in message for message in warnings)
    assert run.events("resize") == []


def test_asking_again_tries_again(begin) -> None:
    run = begin({2: "fails to load"})
    run.requests.ask(2)
    run.step_until(lambda: bool(run.requests.report().message))
    run.pool.arguments = (({},), 1)  # whatever was wrong is mended

    run.requests.ask(2)
    run.step_until(lambda: run.requests.report().ready == 2)

    assert run.requests.report().message == ""
    assert run.events("resize")[-1]["given_up"] == 0


def test_a_device_that_never_gets_ready_is_given_up_at_the_deadline(begin) -> None:
    run = begin({2: "hangs"})
    now = 0.0
    run.elastic.joiners.clock = lambda: now

    run.requests.ask(2)
    run.step()
    (joiner,) = run.elastic.joiners.starting.values()
    run.step_until(lambda: joiner.started == 0)
    now = 601.0
    run.step()

    assert "was not ready 600 s after it had its place" in run.events("warning")[0]["message"]
    assert run.requests.report().joining == 1  # tried again
