"""Copies are made beside the training: it never waits for one, and never ends on one but at its end."""

import dataclasses
import json
import time

import pytest
from remote_runs import Gate, save

from rljob_runtime.errors import StorageError
from rljob_runtime.record.copies import Copies
from rljob_runtime.record.event_types import CheckpointEvent, StepEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.remote import open_remote

PATIENCE_SECONDS = 20.0


class Run:
    """A run without a trainer: its log, checkpoints, and their copies through a gate."""

    def __init__(self, remote, store, *, seconds=PATIENCE_SECONDS):
        self.store = store
        store.folder.mkdir(parents=True)
        self.gate = Gate(remote.fs)
        self.gate.opened.set()
        self.remote = dataclasses.replace(remote, fs=self.gate, seconds=seconds)
        self.log = EventLog(store.folder.parent / "events.jsonl")
        self.copies = Copies(self.remote, store=store, log=self.log)

    def save(self, step):
        path = save(self.store, step)
        self.log.write(CheckpointEvent(step=step, path=str(path)))

    def train(self, step):
        self.log.write(StepEvent(step=step, seconds=0.0, metrics={}))

    def told(self, kind):
        lines = (self.store.folder.parent / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    def wait_for(self, kind, number=1):
        """Train on until so many events of the kind are told."""
        end = time.monotonic() + PATIENCE_SECONDS
        while len(self.told(kind)) < number and time.monotonic() < end:
            self.train(1)
            time.sleep(0.02)
        assert len(self.told(kind)) == number


@pytest.fixture
def run(disk, store):
    return Run(open_remote(disk, "run"), store)


def test_training_goes_on_while_a_checkpoint_is_copied(run):
    run.copies.start()
    run.gate.opened.clear()

    run.save(1)
    run.train(2)
    assert run.told("copied") == []
    run.gate.opened.set()
    run.wait_for("copied")

    (copied,) = run.told("copied")
    assert copied["step"] == 1
    assert copied["uri"] == f"{run.remote.uri}/checkpoints/step-000001"


def test_of_the_checkpoints_that_come_meanwhile_only_the_newest_is_copied(run):
    run.copies.start()
    run.gate.opened.clear()

    for step in (1, 2, 3, 4):
        run.save(step)
        if step == 1:
            while not run.gate.seen[-1:] or "step-000001" not in run.gate.seen[-1]:
                time.sleep(0.01)
    run.gate.opened.set()

    assert run.copies.finish() == ""
    assert [event["step"] for event in run.told("copied")] == [1, 4]


def test_a_checkpoint_stays_until_it_is_copied(run):
    run.copies.start()
    run.gate.opened.clear()

    for step in (1, 2, 3, 4):
        run.save(step)
    run.gate.opened.set()

    assert run.copies.finish() == ""
    assert run.told("warning") == []
    assert sorted(folder.name for folder in run.store.folder.iterdir()) == [
        "step-000003",
        "step-000004",
    ]


def test_a_copy_that_fails_is_a_warning_and_the_next_checkpoint_is_the_next_try(run):
    run.copies.start()
    run.gate.fault = lambda path: "step-000001" in path

    run.save(1)
    run.wait_for("warning")
    run.save(2)
    run.wait_for("copied")

    (warning,) = run.told("warning")
    assert (warning["step"], run.remote.steps()) == (1, [2])
    assert "the line is dead" in warning["message"]


def test_the_records_go_with_every_copy(run):
    (run.store.folder.parent / "rljob.yaml").write_text("kind: RLJob\n")
    run.copies.start()

    run.save(1)
    assert run.copies.finish() == ""

    there = run.remote.fs.cat_file(f"{run.remote.root}/events.jsonl").decode()
    assert "checkpoint" in [json.loads(line)["kind"] for line in there.splitlines()]
    assert run.remote.fs.cat_file(f"{run.remote.root}/rljob.yaml") == b"kind: RLJob\n"


def test_the_traces_go_along_each_once(run):
    name = "profile/step-1/rank-0-update.json.gz"
    file = run.store.folder.parent / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"torn")
    run.copies.start()
    file.write_bytes(b"whole trace")

    for step in (1, 2):
        run.save(step)
        run.wait_for("copied", step)
    assert run.copies.finish() == ""

    assert run.remote.fs.cat_file(f"{run.remote.root}/{name}") == b"whole trace"
    assert sum(path.endswith(name) for path in run.gate.seen) == 2


def test_the_end_tries_once_more(run):
    run.copies.start()
    failures = iter([True])
    run.gate.fault = lambda path: next(failures, False)

    run.save(1)

    assert run.copies.finish() == ""
    assert run.remote.steps() == [1]


def test_the_end_says_which_checkpoint_is_not_there_and_where_it_lies(run):
    run.copies.start()
    run.gate.fault = lambda path: True

    run.save(1)
    missing = run.copies.finish()

    assert missing.startswith("the checkpoint of step 1 is not on remote storage")
    assert "the line is dead" in missing
    assert str(run.store.path(1)) in missing


def test_the_end_does_not_wait_for_ever(disk, store):
    run = Run(open_remote(disk, "run"), store, seconds=0.3)
    run.copies.start()
    run.gate.opened.clear()

    run.save(1)
    started = time.monotonic()
    missing = run.copies.finish()

    assert time.monotonic() - started < 10
    assert "its copy did not end within 0.3 s" in missing
    run.gate.opened.set()


def test_a_folder_that_cannot_be_written_is_found_out_before_training(run):
    run.gate.fault = lambda path: True

    with pytest.raises(StorageError, match=r"events\.jsonl: ConnectionError: the line is dead"):
        run.copies.start()

    assert run.copies.finish() == ""


def test_a_checkpoint_that_an_earlier_run_could_not_copy_is_copied_by_the_next(run):
    save(run.store, 5)

    run.copies.start()

    assert run.copies.finish() == ""
    assert run.remote.steps() == [5]
