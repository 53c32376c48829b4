"""Operators of a Chrome trace by time of their own, against a trace whose times are known."""

import json

import pytest

from rljob_runtime.record.event_types import ProfiledOperator
from rljob_runtime.record.profiles.traces import Trace, top_operators


def event(name, start, length, *, thread=1, category="cpu_op"):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 7,
        "tid": thread,
        "ts": start,
        "dur": length,
    }


EVENTS = [
    event("linear", 0, 100),
    event("mm", 10, 60),
    event("add", 80, 10),
    event("mm", 200, 40),
    event("mm", 0, 30, thread=2),
    event("enclosing", 0, 1000, category="user_annotation"),
    {"ph": "M", "name": "process_name"},
]


@pytest.mark.parametrize("document", [EVENTS, {"traceEvents": EVENTS}])
def test_time_of_what_an_operator_calls_is_not_its_own(document):
    found = top_operators(json.dumps(document).encode(), most=3)

    assert [(one.name, one.calls) for one in found] == [("mm", 3), ("linear", 1), ("add", 1)]
    assert [one.self_seconds for one in found] == pytest.approx([130e-6, 30e-6, 10e-6])


def test_only_as_many_as_asked_for_are_told():
    assert top_operators(json.dumps(EVENTS).encode(), most=1) == (
        ProfiledOperator(name="mm", calls=3, self_seconds=pytest.approx(130e-6)),  # type: ignore[arg-type]
    )


def test_files_are_named_by_step_device_and_state():
    first = Trace(state="generate", step=3, rank=1)
    second = Trace(state="generate", step=3, rank=1, occurrence=2)

    assert first.name == "profile/step-3/rank-1-generate.json.gz"
    assert second.name == "profile/step-3/rank-1-generate-2.json.gz"
