"""What a run does about an alarm: it goes on, ends, or goes back to a checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_events import told_in

from rljob_api.spec.guards import Guards
from rljob_runtime.errors import GuardStop
from rljob_runtime.record.checkpoint import CheckpointStore, RunState
from rljob_runtime.record.event_types import RunStartedEvent, StepEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.plain import PlainDisplay
from rljob_runtime.run.alarm_actions import AlarmActions, RollBack
from rljob_runtime.run.alarm_watch import AlarmWatch

Make = Callable[..., AlarmActions]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(saved=[2, 4], entropyCollapse={...}): guards of a run with these checkpoints."""

    def build(saved: list[int] | None = None, **guards: Any) -> AlarmActions:
        store = CheckpointStore(folder=tmp_path / "checkpoints", keep=9)
        for step in saved or []:
            (store.begin(step) / "model").write_text("weights")
            store.commit(
                RunState(step=step, seed=0, weight_version=step, dock_rows=0, spec_digest="")
            )
        watch = AlarmWatch(
            guards=Guards.model_validate(guards, by_alias=True, by_name=False), compares=True
        )
        return AlarmActions(watch=watch, log=EventLog(tmp_path / "events.jsonl"), store=store)

    return build


def collapse(alarm_actions: AlarmActions, *, until: int, good: int = 0) -> None:
    """Steps whose entropy is gone after the good ones."""
    for step in range(1, until + 1):
        alarm_actions.observe(step, {"entropy": 0.5 if step <= good else 0.0})


def test_a_warning_is_told_and_the_run_goes_on(make: Make) -> None:
    alarm_actions = make(entropyCollapse={"window": 2})

    collapse(alarm_actions, until=5)

    (alarm,) = told_in(alarm_actions.log.path)
    assert (alarm.alarm, alarm.state, alarm.policy) == (
        "entropyCollapse",
        "raised",
        "warn",
    )
    assert (alarm.since, alarm.step, alarm.value) == (1, 2, 0.0)


def test_a_stop_ends_the_run_with_the_alarm_as_its_reason(make: Make) -> None:
    alarm_actions = make(entropyCollapse={"window": 2, "policy": "stop"})

    with pytest.raises(
        GuardStop, match=r"alarm at step 2: entropyCollapse: entropy 0 nats a token"
    ):
        collapse(alarm_actions, until=5)


def test_a_rollback_goes_to_the_last_checkpoint_before_the_first_bad_step(make: Make) -> None:
    alarm_actions = make([2, 4, 6], entropyCollapse={"window": 3, "policy": "rollback"})

    with pytest.raises(RollBack) as back:
        collapse(alarm_actions, until=9, good=4)  # 5, 6 and 7 are bad

    assert back.value.step == 4
    assert back.value.checkpoint.name == "step-000004"
    assert alarm_actions.store.last_step() == 4  # that of step 6 was bad
    assert (alarm_actions.rollbacks, alarm_actions.skipped) == (1, 3)
    (alarm,) = told_in(alarm_actions.log.path)
    assert alarm.rolled_back_to == 4


def test_a_run_is_rolled_back_so_often_and_then_ends(make: Make) -> None:
    alarm_actions = make(
        [1, 2], maxRollbacks=1, entropyCollapse={"window": 1, "policy": "rollback"}
    )
    with pytest.raises(RollBack):
        collapse(alarm_actions, until=3, good=2)
    alarm_actions.watch.rewind(2)
    alarm_actions.observe(3, {"entropy": 0.5})

    with pytest.raises(GuardStop, match=r"rolled back 1 times already.*spec\.guards\.maxRollbacks"):
        alarm_actions.observe(4, {"entropy": 0.0})


def test_without_an_older_checkpoint_a_rollback_ends_the_run(make: Make) -> None:
    alarm_actions = make([2], entropyCollapse={"window": 2, "policy": "rollback"})

    with pytest.raises(GuardStop, match="no checkpoint from before step 1 to roll back to"):
        collapse(alarm_actions, until=2)


def test_of_two_alarms_at_once_the_stop_counts(make: Make) -> None:
    alarm_actions = make(
        [1],
        entropyCollapse={"window": 1, "policy": "rollback"},
        truncation={"window": 1, "policy": "stop"},
    )

    with pytest.raises(GuardStop, match="truncation"):
        alarm_actions.observe(2, {"entropy": 0.0, "response_length/clipped_share": 1.0})

    assert alarm_actions.store.last_step() == 1
    assert {event.alarm for event in told_in(alarm_actions.log.path)} == {
        "entropyCollapse",
        "truncation",
    }


def test_events_of_steps_that_were_rolled_back_are_void_and_the_alarm_stays(make: Make) -> None:
    alarm_actions = make([2], entropyCollapse={"window": 1, "policy": "rollback"})
    log = alarm_actions.log
    log.write(RunStartedEvent(name="job", steps=4))
    for step in (1, 2, 3):
        log.write(StepEvent(step=step, seconds=1.0, metrics={"life": 1}))
    with pytest.raises(RollBack):
        alarm_actions.observe(3, {"entropy": 0.0})
    log.write(StepEvent(step=3, seconds=1.0, metrics={"life": 2}))

    events = told_in(log.path)
    history = RunHistory.of(events)

    assert [(e.step, e.metrics["life"]) for e in events if isinstance(e, StepEvent)] == [
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    assert [alarm.rolled_back_to for alarm in history.alarms] == [2]
    assert history.series("life") == [1, 1, 2]


def test_the_terminal_tells_alarms_and_their_end(make: Make, tmp_path: Path) -> None:
    alarm_actions = make(
        [1], entropyCollapse={"window": 1}, truncation={"window": 1, "policy": "rollback"}
    )
    with (tmp_path / "shown").open("w+") as stream:
        alarm_actions.log.subscribe(PlainDisplay(stream, report=lambda: None).on_event)

        alarm_actions.observe(2, {"entropy": 0.0})
        alarm_actions.observe(3, {"entropy": 0.5})
        with pytest.raises(RollBack):
            alarm_actions.observe(4, {"response_length/clipped_share": 1.0})

        stream.seek(0)
        lines = stream.read().splitlines()
    assert lines == [
        "alarm entropyCollapse at step 2: entropy 0 nats a token, below 0.01 (spec.guards.entropyCollapse)",
        "alarm entropyCollapse is over at step 3",
        "alarm truncation at step 4: 100% of the responses are cut at spec.batch.maxResponseLength "
        "(spec.guards.truncation); rolled back to step 1",
    ]
