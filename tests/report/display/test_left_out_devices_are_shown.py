"""What people read of devices that training goes on without."""

from typing import Any

from run_events import history_of

from rljob_runtime.record.event_types import RecoveryEvent, ReplicasEvent
from rljob_runtime.report.display.wording import recovery_text, replicas_text

AWAY: dict[str, Any] = {"step": 12, "live": 1, "wanted": 2, "left_out": [1], "hosts": ["node-b"]}


def test_a_death_tells_that_the_others_train_on() -> None:
    died = RecoveryEvent(
        devices=[1],
        roles=["update"],
        hosts=["node-b"],
        step=12,
        source="peers",
        seconds=14.0,
        message="",
        left_out=[1],
    )

    assert recovery_text(died) == (
        "device 1 (node-b) died; training goes on without device 1, after 14 s; on after step 12"
    )


def test_the_number_of_replicas_names_who_is_missing() -> None:
    away, back = ReplicasEvent(**AWAY), ReplicasEvent(step=20, live=2, wanted=2)

    assert replicas_text(away) == "1 of 2 replicas train after step 12, without device 1 (node-b)"
    assert replicas_text(back) == "2 of 2 replicas train after step 20"
    told = {"kind": "replicas", "time": 1.0, **AWAY}
    assert (found := history_of([told]).left_out()) is not None
    assert found.left_out == [1]
    assert history_of([told, {**told, "live": 2, "left_out": []}]).left_out() is None
