"""Traces as files of a run's folder, events and links of its report."""

import gzip
import json

from page_data import page_data

from rljob_runtime.record.event_types import ProfiledOperator
from rljob_runtime.record.events import EventLog, read_events
from rljob_runtime.record.profiles.traces import Trace
from rljob_runtime.record.profiles.writing import write_traces
from rljob_runtime.report.display.report import write_report

TRACE = Trace(
    state="update",
    step=2,
    rank=0,
    seconds=1.5,
    content=gzip.compress(b"[]"),
    operators=(ProfiledOperator(name="aten::mm", calls=3, self_seconds=0.5),),
)


def written(folder, *traces):
    log = EventLog(folder / "events.jsonl")
    write_traces(traces, folder=folder, log=log)
    log.close()
    return read_events(folder / "events.jsonl")


def test_a_trace_becomes_a_file_and_an_event(tmp_path):
    (event,) = written(tmp_path, TRACE)

    assert (tmp_path / event.path).read_bytes() == TRACE.content
    assert event.path == "profile/step-2/rank-0-update.json.gz"
    assert (event.step, event.rank, event.state) == (2, 0, "update")
    assert (event.seconds, event.bytes) == (1.5, len(TRACE.content))
    assert event.operators == [ProfiledOperator(name="aten::mm", calls=3, self_seconds=0.5)]


def test_what_could_not_be_recorded_is_a_warning(tmp_path):
    failed = Trace(state="update", step=2, rank=0, problem="did not start: RuntimeError: no")

    (event,) = written(tmp_path, failed)

    assert event.kind == "warning"
    assert event.message == "profile of update on device 0 did not start: RuntimeError: no"


def test_a_folder_that_takes_no_file_is_a_warning_too(tmp_path):
    (tmp_path / "profile").write_text("in the way")

    (event,) = written(tmp_path, TRACE)

    assert event.kind == "warning"
    assert "could not be written" in event.message


def test_the_report_names_traces_with_their_operators(tmp_path):
    written(tmp_path, TRACE)

    shown = json.dumps(page_data(write_report(tmp_path)))

    assert "profile/step-2/rank-0-update.json.gz" in shown
    assert "aten::mm 0.50 s" in shown
