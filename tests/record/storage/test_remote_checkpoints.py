"""A checkpoint on remote storage is whole or absent, whatever happens while it is copied."""

import dataclasses
import json
import subprocess
import sys

import pytest
from remote_runs import Gate, contents, save

import rljob_runtime.record.remote
from rljob_api.spec.infrastructure import RemoteStorage
from rljob_runtime.errors import StorageError
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.remote import MARKER, open_remote


def remote_names(remote) -> set[str]:
    return {path.removeprefix(f"{remote.root}/") for path in remote.fs.find(remote.root)}


def test_a_checkpoint_comes_back_as_it_went(remote, store, tmp_path):
    saved = save(store, 3)
    elsewhere = CheckpointStore(folder=tmp_path / "elsewhere", keep=1)

    size = remote.put_checkpoint(3, saved)
    fetched = remote.fetch_checkpoint(3, elsewhere)

    assert remote.steps() == [3]
    assert fetched == elsewhere.latest()
    assert contents(fetched) == contents(saved)
    assert size == sum(map(len, contents(saved).values()))


def test_a_copy_that_broke_off_is_no_checkpoint_and_the_next_try_replaces_it(remote, store):
    saved = save(store, 3)
    gate = Gate(remote.fs, fault=lambda path: path.endswith("optimizer.pt"))
    gate.opened.set()

    with pytest.raises(StorageError, match=r"/research/run cannot take .* 3: .*the line is dead"):
        dataclasses.replace(remote, fs=gate).put_checkpoint(3, saved)

    assert "checkpoints/step-000003/model/model.safetensors" in remote_names(remote)
    assert remote.steps() == []
    assert not remote.holds_run()

    remote.put_checkpoint(3, saved)
    assert remote.steps() == [3]


def test_a_copy_of_which_a_file_is_gone_or_cut_is_no_checkpoint(remote, store):
    for step in (1, 2, 3):
        remote.put_checkpoint(step, save(store, step))

    remote.fs.rm(f"{remote.root}/checkpoints/step-000001/optimizer.pt")
    remote.fs.pipe_file(f"{remote.root}/checkpoints/step-000002/optimizer.pt", b"mo")

    assert remote.steps() == [3]


def test_copies_of_steps_that_were_rolled_back_go_and_that_of_the_step_itself_stays(remote, store):
    for step in (1, 2, 3):
        remote.put_checkpoint(step, save(store, step))

    remote.drop_after(2)

    assert remote.steps() == [1, 2]


def test_the_checkpoint_before_a_step_is_not_that_steps(store):
    for step in (1, 2):
        save(store, step)

    assert [store.last_step(before=step) for step in (3, 2, 1)] == [2, 1, None]


@pytest.mark.parametrize("outside", ["../../evil", "{folder}/evil"], ids=["above", "absolute"])
def test_a_copy_that_would_leave_its_folder_is_no_checkpoint(s3, store, tmp_path, outside):
    remote, name = open_remote(s3, "run"), outside.format(folder=tmp_path)
    remote.put_checkpoint(1, save(store, 1))
    folder = f"{remote.root}/checkpoints/step-000001"
    sizes = json.loads(remote.fs.cat_file(f"{folder}/{MARKER}"))

    remote.fs.pipe_file(f"{folder}/{name}", b"bad")
    remote.fs.pipe_file(f"{folder}/{MARKER}", json.dumps(sizes | {name: 3}).encode())

    assert f"{folder}/{name}" in remote.fs.find(folder)
    assert remote.steps() == []
    with pytest.raises(StorageError, match="which is no file of the checkpoint"):
        remote.fetch_checkpoint(1, CheckpointStore(folder=tmp_path / "fetched", keep=2))
    assert not list(tmp_path.rglob("evil"))


def test_only_the_newest_whole_copies_are_kept(remote, store):
    for step in (1, 2, 3, 4):
        remote.put_checkpoint(step, save(store, step))
    remote.fs.rm(f"{remote.root}/checkpoints/step-000003/{MARKER}")

    remote.keep(2)

    steps = {name.split("/")[1] for name in remote_names(remote)}
    assert steps == {"step-000002", "step-000004"}
    assert remote.steps() == [2, 4]


def test_a_copy_that_takes_too_long_is_given_up(remote, store):
    slow = dataclasses.replace(remote, seconds=1e-9)

    with pytest.raises(StorageError, match=r"longer than 1e-09 s \(spec.checkpoint.storage.remote"):
        slow.put_checkpoint(1, save(store, 1))

    assert remote.steps() == []


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("take events.jsonl", lambda remote, folder: remote.put_records(folder)),
        ("be read", lambda remote, folder: remote.steps()),
        ("give events.jsonl", lambda remote, folder: remote.fetch_events(folder)),
        ("drop old checkpoints", lambda remote, folder: remote.keep(0)),
        ("drop checkpoints that were", lambda remote, folder: remote.drop_after(0)),
    ],
)
def test_everything_on_remote_storage_has_a_deadline(disk, store, what, call):
    remote = open_remote(disk, "run")
    remote.put_checkpoint(1, save(store, 1))
    folder = store.folder.parent
    (folder / "events.jsonl").write_text("{}\n")
    remote.put_records(folder)

    with pytest.raises(StorageError, match=rf"/disk/run cannot {what}.*longer than 1e-09 s"):
        call(dataclasses.replace(remote, seconds=1e-9), folder)

    assert remote.steps() == [1]


def test_more_stacks_than_are_copied_at_once_arrive_whole(remote, tmp_path, monkeypatch):
    monkeypatch.setattr(rljob_runtime.record.remote, "MOST_FILES", 4)
    stacks = tmp_path / "run" / "hangs" / "20260102-000000-sync"
    stacks.mkdir(parents=True)
    for number in range(9):
        (stacks / f"device-{number}.txt").write_text(f"device {number} stands")
    (stacks / "summary.txt").write_text("late")

    remote.put_hangs(tmp_path / "run")

    above = f"{remote.root}/hangs/{stacks.name}/"
    there = {path.removeprefix(above): remote.fs.cat_file(path) for path in remote.fs.find(above)}
    assert there == contents(stacks)


def test_a_bucket_that_is_missing_is_named(s3):
    missing = open_remote(RemoteStorage(uri="s3://no-such-bucket/a", endpoint=s3.endpoint), "run")

    with pytest.raises(StorageError, match=r"s3://no-such-bucket/a/run cannot be read: .*bucket"):
        missing.holds_run()


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    code = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from rljob_api.spec.infrastructure import RemoteStorage\n"
        "from rljob_runtime.record.remote import open_remote\n"
        "open_remote(RemoteStorage(uri='s3://bucket'), 'run')\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert "ConfigError: spec.checkpoint.storage.remote.uri is s3://bucket" in done.stderr
    assert "install rljob[s3]" in done.stderr
