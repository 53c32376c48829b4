"""Devices that generate and died: those without a place are left out where the job can run without them.

The devices are stand-ins without a model, in this process.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from stand_in_devices import Plan, Run
from workers_here import WorkersHere

from rljob_runtime.errors import DeadlineError, WorkerFailed
from rljob_runtime.run.left_out import warn_of_missing_nodes
from rljob_runtime.run.lost_rollouts import LostRollouts

WHERE = "rljob_runtime.run.lost_rollouts"


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """begin(2): a run with so many devices that generate, from device 1 on, each on a node."""
    monkeypatch.setattr(f"{WHERE}.PLACE_SECONDS", 0.0)
    monkeypatch.setattr(f"{WHERE}.START_DEADLINE_SECONDS", 0.3)
    runs = []

    def start(generating: int, plan: Plan | None = None) -> Run:
        runs.append(Run(tmp_path, {} if plan is None else plan, workers=lambda _: WorkersHere(5)))
        runs[-1].requests.ask(generating)
        runs[-1].step_until(lambda: runs[-1].requests.report().ready == generating)
        return runs[-1]

    yield start
    for started in runs:
        started.end()


def places(run: Run, count: int) -> None:
    """So many nodes are there from now on."""
    assert isinstance(run.pool.workers, WorkersHere)
    run.pool.workers.places = count


def lost_of(run: Run) -> LostRollouts:
    return LostRollouts(actors=run.actors, elastic=run.elastic, log=run.log)


def test_one_without_a_place_is_left_out_and_asked_for(begin: Callable[..., Run]) -> None:
    run = begin(2)
    died = run.actors.members[2]
    run.pool.workers.end(died.worker)
    places(run, 2)

    left = lost_of(run).replace([died], meet_seconds=1)
    run.actors.meet()
    run.step()

    assert left == [died]
    assert run.group() == [0, 1]
    report = run.requests.report()
    assert (report.wanted, report.ready, report.joining) == (2, 1, 1)


def test_one_with_a_place_is_in_it_at_once(begin: Callable[..., Run]) -> None:
    run = begin(2)
    died = run.actors.members[1]
    run.pool.workers.end(died.worker)

    left = lost_of(run).replace([died], meet_seconds=1)
    run.actors.meet()

    assert left == []
    assert run.group() == [0, 1, 2]


def test_the_only_one_is_waited_for_which_is_told_once(begin: Callable[..., Run]) -> None:
    run = begin(1)
    died = run.actors.members[1]
    run.pool.workers.end(died.worker)
    places(run, 1)

    with pytest.raises(DeadlineError, match="rollout device 1: not there within 0 s"):
        lost_of(run).replace([died], meet_seconds=1)

    (told,) = run.events("warning")
    assert told["message"].startswith("rollout device 1: no place since")
    assert died in run.actors.members


def test_where_the_job_cannot_have_all_others_some_of_them_rest(begin: Callable[..., Run]) -> None:
    run = begin(4)  # 8 prompts are for 1, 2 or 4 of them
    died = run.actors.members[4]
    run.pool.workers.end(died.worker)
    places(run, 4)

    left = lost_of(run).replace([died], meet_seconds=1)
    run.actors.meet()
    run.step()
    rests = run.group(), run.requests.report()
    run.requests.ask(2)
    run.step()

    assert left == [died]
    assert rests[0] == [0, 1, 2]
    assert (rests[1].ready, rests[1].joining) == (2, 2)
    assert run.requests.report().joining == 0


def test_one_that_dies_again_is_told_once_the_others_are_left_out(
    begin: Callable[..., Run],
) -> None:
    plan: Plan = {}
    run = begin(2, plan)
    dies, placeless = run.actors.members[1], run.actors.members[2]
    for member in (dies, placeless):
        run.pool.workers.end(member.worker)
    places(run, 2)
    plan[1] = "dies"

    with pytest.raises(WorkerFailed, match="died"):
        lost_of(run).replace([dies, placeless], meet_seconds=1)

    assert dies in run.actors.members
    assert placeless not in run.actors.members


def test_devices_that_train_and_are_waited_for_are_told(
    begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_runtime.run.left_out.PLACE_SECONDS", 0.01)
    run = begin(1)
    members, started = run.actors.members, run.actors.members[1].worker.address()
    places(run, 1)

    warn_of_missing_nodes(members, [started], pool=run.pool, log=run.log)
    before = run.events("warning")
    warn_of_missing_nodes(members, [started, Future()], pool=run.pool, log=run.log)

    assert before == []
    (told,) = run.events("warning")
    assert told["message"].startswith("device 1: no place since")
