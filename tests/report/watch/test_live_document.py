"""What a page is told: everything at first, then what has changed; together always the report's document."""

import json
from typing import Any

import pytest
from run_events import history_of, make_events

from rljob_runtime.report.display.document import document
from rljob_runtime.report.watch import follow, live_document
from rljob_runtime.report.watch.live_document import ENTRY_IDS, LiveRun
from rljob_runtime.report.watch.runs import LocalRun


class Reader:
    """Keeps a document from what it is told, as live.js does."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self.known: dict[str, Any] = {"run": "", "version": 0}
        self.document: dict[str, Any] = {}
        self.size = 0

    def look(self) -> dict[str, Any]:
        said = self._run.answer(self.known["run"], self.known["version"])
        self.size = len(said)
        told = json.loads(said)
        self.known = {"run": told["run"], "version": told["version"]}
        self.document |= told["parts"]
        for name, news in told["lists"].items():
            id_of = ENTRY_IDS[name]
            before = {str(entry[id_of]): entry for entry in self.document.get(name, [])}
            known = before | news["entries"]
            self.document[name] = [known[key] for key in news["order"]]
        return told


@pytest.fixture(autouse=True)
def at_once(monkeypatch) -> None:
    """Each question reads on: how often a document is made is no matter here."""
    monkeypatch.setattr(live_document, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(live_document, "SHARE", 0)


def written(events: list[dict[str, Any]]) -> Any:
    """The report's document of the events, as JSON has it."""
    return json.loads(json.dumps(document(history_of(events), "")))


def test_a_reader_always_has_the_reports_document(growing) -> None:
    run = growing(steps=8, every=3)
    events = [*run.events]
    reader = Reader(LiveRun(LocalRun(run.folder)))

    reader.look()
    while run.events:
        run.write(7)
        reader.look()

        assert reader.document == written(events[: len(events) - len(run.events)])


def test_a_reader_that_comes_late_has_it_too(growing) -> None:
    run = growing(steps=6)
    events = [*run.events]
    run.write()
    live = LiveRun(LocalRun(run.folder))
    live.answer("", 0)
    reader = Reader(live)

    reader.look()

    assert reader.document == written(events)


def test_without_news_nothing_is_told(growing) -> None:
    run = growing(steps=6)
    run.write()
    reader = Reader(LiveRun(LocalRun(run.folder)))
    reader.look()

    told = reader.look()

    assert (told["parts"], told["lists"]) == ({}, {})


def test_a_step_of_a_long_run_brings_little(growing) -> None:
    run = growing(steps=600, finished=None)
    run.write_until("step", 590)
    reader = Reader(LiveRun(LocalRun(run.folder)))
    reader.look()
    whole = reader.size

    run.write_until("dock", 591)
    told = reader.look()

    assert (
        len(told["lists"]["samples"]["entries"]) <= 2
    )  # the new last one, and its forerunner if it is kept
    assert reader.size < whole / 2


def test_steps_that_a_resumed_run_undid_are_taken_back(growing) -> None:
    run = growing(steps=9, every=None, finished=None)
    events = [*run.events]
    run.write()
    reader = Reader(LiveRun(LocalRun(run.folder)))
    reader.look()
    start = make_events(steps=9)[0] | {"resumed_from": 5}
    run.events = [start]

    run.write()
    reader.look()

    assert [entry["step"] for entry in reader.document["samples"]] == [1, 2, 3, 4, 5]
    assert reader.document == written([*events, start])


def test_another_log_in_its_place_is_told_from_its_beginning(growing) -> None:
    run = growing(steps=9)
    run.write()
    reader = Reader(LiveRun(LocalRun(run.folder)))
    reader.look()
    other = make_events(steps=2, seed=3)

    run.replace(other)
    reader.look()

    assert reader.document == written(other)


def test_versions_of_another_server_count_for_nothing(growing) -> None:
    run = growing(steps=3)
    events = [*run.events]
    run.write()
    reader = Reader(LiveRun(LocalRun(run.folder)))
    reader.known = {"run": "of another server", "version": 10**9}

    reader.look()

    assert reader.document == written(events)


def test_what_is_wrong_is_told_and_what_is_there_is_shown(growing) -> None:
    run = growing(steps=2, start=1000.0)
    live = LiveRun(LocalRun(run.folder), clock=lambda: 1010.0)
    reader = Reader(live)

    waiting = reader.look()
    run.write(3)
    begun = reader.look()

    assert (waiting["trouble"], waiting["age"]) == (f"waiting for {run.file}", None)
    assert (begun["trouble"], begun["over"], begun["age"]) == ("", False, 5.0)
    assert reader.document["name"] == "spell-backward-grpo"


def test_a_long_run_is_shown_before_all_of_it_is_read(growing, monkeypatch) -> None:
    monkeypatch.setattr(live_document, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(follow, "FILE_PIECE_BYTES", 40_000)
    run = growing(steps=20)
    run.write()
    reader = Reader(LiveRun(LocalRun(run.folder)))

    first = reader.look()
    shown = reader.document["status"]["step"]
    while reader.look()["trouble"]:
        pass

    assert (first["trouble"], first["over"]) == ("its earlier steps are still being read", False)
    assert 0 < shown < reader.document["status"]["step"] == 20
