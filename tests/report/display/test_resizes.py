"""Rollout devices that came and went, on the terminal and in the report."""

import io

from rich.console import Console
from run_events import event_of, history_of

from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.panels import header
from rljob_runtime.report.display.plain import PlainDisplay

SAID = "rollout devices 1 → 2 after step 3, asked for 8.1 s before; training stood still for 0.21 s"


def resize(time: float, step: int, before: int, after: int):
    return {
        "time": time, "kind": "resize", "step": step, "from": before, "to": after,
        "waited_seconds": 8.1, "stopped_seconds": 0.21,
    }  # fmt: skip


def test_a_change_is_said_where_a_run_is_followed_and_where_it_is_read(events_of) -> None:
    events = events_of(steps=3, devices=2, finished=None)
    change = resize(events[-1]["time"], 3, 1, 2)
    stream = io.StringIO()
    plain = PlainDisplay(stream, report=lambda: None)

    plain.on_event(event_of(change))
    history = history_of([*events, change])
    written = io.StringIO()
    Console(width=120, file=written).print(*header(history, 120))

    assert stream.getvalue() == f"{SAID}\n"
    assert document(history, "")["notices"][-1] == {
        "step": 3, "kind": "resize", "text": SAID, "count": 1,
    }  # fmt: skip
    assert "3 devices" in written.getvalue()


def test_devices_are_counted_from_the_last_start(events_of) -> None:
    events = events_of(steps=3, devices=2, finished=None)
    history, at = history_of(events), events[-1]["time"]
    history.add(event_of(resize(at, 2, 1, 2)))
    history.add(event_of(resize(at, 3, 2, 1)))

    history.add(event_of({**events[0], "time": at + 1, "devices": 5, "resumed_from": 2}))
    kept = [event.to for event in history.resizes]
    again = history.devices
    history.add(event_of(resize(at + 2, 2, 4, 2)))

    assert kept == [2]
    assert (again, history.devices) == (5, 3)
