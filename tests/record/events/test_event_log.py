"""The event log: what is written is read back, and nothing that goes wrong reaches training."""

import errno
import json
import logging
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_events import make_events, told_in

from rljob_runtime.record.event_types import (
    CheckpointEvent,
    Event,
    Group,
    HangEvent,
    PhaseEvent,
    RunFinishedEvent,
    RunStartedEvent,
    StepEvent,
    WarningEvent,
)
from rljob_runtime.record.events import EventLog, cut_rewound, events_in, parse_event, plain

BEFORE = (Path(__file__).parent / "events_of_before.jsonl").read_text().splitlines()


def test_events_are_read_back_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 12.5)

    started = RunStartedEvent(name="job", steps=2)
    step = StepEvent(step=1, seconds=0.5, metrics={"kl": 0.25}, samples=[Group(prompt="ä\n→")])
    log.write(started)
    log.write(step)

    assert told_in(log.path) == [replace(started, time=12.5), replace(step, time=12.5)]
    log.close()


def test_each_event_is_one_line_and_one_write(tmp_path: Path, monkeypatch) -> None:
    sizes = []
    write = os.write
    log = EventLog(tmp_path / "events.jsonl")
    monkeypatch.setattr(
        os, "write", lambda file, data: sizes.append(len(data)) or write(file, data)
    )

    log.write(WarningEvent(message="one\ntwo"))
    log.write(WarningEvent(message="three"))

    lines = log.path.read_bytes().splitlines(keepends=True)
    assert sizes == [len(line) for line in lines]
    assert len(lines) == 2


def test_values_that_json_lacks_are_written_as_what_it_has(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")

    metrics = {"nan": math.nan, "inf": math.inf, "int": torch.tensor(3)}
    log.write(StepEvent(step=1, seconds=torch.tensor(0.5), metrics=metrics))  # type: ignore[arg-type]
    log.write(HangEvent(stage="reward", message="broken \udcff surrogate", folder=tmp_path))  # type: ignore[arg-type]

    step, hang = told_in(log.path)
    assert step.seconds == 0.5
    assert step.metrics == {"nan": None, "inf": None, "int": 3}
    assert hang.folder == str(tmp_path)
    assert hang.message == "broken ? surrogate"


def test_a_torn_last_line_is_skipped_and_writing_goes_on_after_it(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = json.dumps({"time": 1.0, "kind": "warning", "message": "whole"})
    path.write_text(whole + "\n" + '{"time": 2.0, "kind": "warn')
    assert [event.message for event in told_in(path)] == ["whole"]

    log = EventLog(path)
    log.write(WarningEvent(message="after"))

    assert [event.message for event in told_in(path)] == ["whole", "after"]


def test_a_line_cut_within_a_character_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventLog(path).write(WarningEvent(message="ä"))
    path.write_bytes(path.read_bytes() + '{"time":1,"kind":"warning","message":"ä'.encode()[:-1])

    assert len(told_in(path)) == 1


def test_a_full_disk_does_not_stop_training_and_is_said_once(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    log = EventLog(tmp_path / "events.jsonl")
    monkeypatch.setattr(os, "write", full)

    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            log.write(WarningEvent(message="lost"))

    assert log.failures == 5
    assert sum("no space left" in record.getMessage() for record in caplog.records) == 1


def test_a_short_write_does_not_spoil_the_next_event(tmp_path: Path, monkeypatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: write(file, data[:10]))
        log.write(WarningEvent(message="cut off"))

    log.write(WarningEvent(message="whole"))

    assert [event.message for event in told_in(log.path)] == ["whole"]
    assert log.failures == 1


def test_a_failing_display_does_not_stop_training_or_the_log(tmp_path: Path) -> None:
    seen = []

    def broken(event: object) -> None:
        raise KeyError("reward")

    log = EventLog(tmp_path / "events.jsonl")
    log.subscribe(broken)
    log.subscribe(seen.append)

    log.write(WarningEvent(message="shown"))

    assert log.failures == 1
    assert [event.message for event in seen] == ["shown"]
    assert len(told_in(log.path)) == 1


def test_writing_after_close_counts_as_a_failure(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.close()

    log.write(WarningEvent(message="late"))

    assert log.failures == 1


@pytest.mark.parametrize(
    "event", [CheckpointEvent(step=1, path="p"), RunFinishedEvent(status="succeeded")]
)
def test_what_must_last_is_synced_to_the_disk(tmp_path: Path, monkeypatch, event: Event) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    log = EventLog(tmp_path / "events.jsonl")

    log.write(WarningEvent(message="no need"))
    assert synced == []
    log.write(event)

    assert len(synced) == 1


def test_a_resumed_run_reads_as_if_never_interrupted() -> None:
    def step(number: int, reward: float) -> StepEvent:
        return StepEvent(step=number, seconds=1.0, metrics={"reward/mean": reward})

    start = RunStartedEvent(name="job", steps=4)
    lost = PhaseEvent(name="update", step=4, start=0.0, end=1.0)
    end = RunFinishedEvent(status="failed")
    again = replace(start, resumed_from=2)

    events = cut_rewound(
        [start, step(1, 0.1), step(2, 0.2), step(3, 0.3), lost, end, again, step(3, 0.33)]
    )

    rewards = [e.metrics["reward/mean"] for e in events if isinstance(e, StepEvent)]
    assert rewards == [0.1, 0.2, 0.33]
    assert [e.kind for e in events if e.kind != "step"] == ["run_started", "run_started"]


def test_a_run_that_went_on_from_no_checkpoint_starts_over() -> None:
    start = RunStartedEvent(name="job", steps=4)
    step = StepEvent(step=1, seconds=1.0, metrics={})

    assert cut_rewound([start, step, start]) == [start, start]


def test_the_last_event_of_a_step_counts() -> None:
    first = StepEvent(time=0.0, step=1, seconds=1.0, metrics={})
    second = replace(first, time=5.0)

    assert cut_rewound([first, second]) == [second]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"kind": "warning", "message": "no time"},
        {"time": 1.0, "kind": "unheard of"},
        {"time": 1.0, "kind": "warning"},
        {"time": 1.0, "kind": "step", "step": "1", "seconds": 1.0, "metrics": {}},
        {"time": 1.0, "kind": "evaluation", "step": 1, "accuracy": None, "n": 4},
    ],
)
def test_what_is_no_event_is_not_taken_for_one(value: object) -> None:
    assert parse_event(json.dumps(value)) is None


def test_a_field_that_is_not_as_its_type_says_is_as_if_it_were_not_there() -> None:
    event = parse_event('{"time":1,"kind":"warning","message":"w","step":"one","more":[1]}')

    assert event == WarningEvent(time=1.0, message="w")


def test_lines_of_runs_before_events_had_types_are_read_whole() -> None:
    """What the runtime wrote before, a line a kind: no line and no field is lost."""
    for line in BEFORE:
        event = parse_event(line)
        assert event is not None, line
        written, before = plain(event), json.loads(line)
        assert {name: written.get(name) for name in before} == before


@pytest.mark.parametrize("events", [make_events(steps=3), [*map(json.loads, BEFORE)]])
def test_a_log_is_read_as_each_of_its_lines_is(events: list[dict[str, Any]]) -> None:
    """What reads many lines fast says of each what the slow and thorough way says: whole, without a field,
    with one of another type, cut."""
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    for event in events:
        for name in event:
            wrong = [{k: v for k, v in event.items() if k != name}]
            wrong += [event | {name: value} for value in (None, "one", 1, 1.5, [1], {"a": [{}]})]
            lines += [json.dumps(each, separators=(",", ":")) for each in wrong]
    lines += [line[:-7] for line in lines] + [line.replace(":", ": ") for line in lines]

    lines.append('{"time":1,"kind":"warning","message":"w","more":' + "[" * 9000 + "]" * 9000 + "}")

    for line in lines:
        expected = parse_event(line)
        assert [*events_in([line.encode()])] == ([] if expected is None else [expected]), line


def test_a_line_that_is_no_text_is_skipped() -> None:
    lines = [b'{"time":1,"kind":"warning","message":"%s"}' % word for word in (b"\xff", b"w")]

    assert [*events_in(lines)] == [WarningEvent(time=1.0, message="w")]


def test_what_is_read_briefly_lacks_phases_docks_and_samples_alone() -> None:
    lines = [json.dumps(each, separators=(",", ":")).encode() for each in make_events(steps=3)]
    whole = [event for event in events_in(lines) if event.kind not in ("phase", "dock")]

    brief = [*events_in(lines, brief=True)]

    def without_samples(event: Event) -> Any:
        return {name: value for name, value in plain(event).items() if name != "samples"}

    assert [*map(without_samples, brief)] == [*map(without_samples, whole)]
    assert all(not event.samples for event in brief if isinstance(event, StepEvent))


def test_fields_that_are_new_or_wrong_are_left_out_and_the_event_stays() -> None:
    line = {
        "time": 1.0,
        "kind": "checkpoint",
        "step": 3,
        "path": "p",
        "seconds": "long",
        "new": [1],
    }

    event = parse_event(json.dumps(line))

    assert event == CheckpointEvent(time=1.0, step=3, path="p")
    assert parse_event(json.dumps({**line, "step": "three"})) is None
    assert parse_event(json.dumps({**line, "kind": "unheard"})) is None
