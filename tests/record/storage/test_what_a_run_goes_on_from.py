"""A run goes on from the newest checkpoint that there is, here or remote; without one it begins."""

import pytest
from cluster_jobs import JOB, merged
from remote_runs import save

from rljob_api.check.load import read_job
from rljob_runtime.errors import CheckpointDamaged, ConfigError
from rljob_runtime.record.events import EventLog
from rljob_runtime.run import run_place as module
from rljob_runtime.run.run_place import prepare_run_directory
from rljob_runtime.run.run_request import RunRequest


@pytest.fixture
def place(disk, tmp_path, monkeypatch):
    """place(resume): where the job's run lies, as `rljob run` finds out."""
    monkeypatch.chdir(tmp_path)

    def find(resume, *, remote=True, path=None, output=None):
        storage = {"remote": {"uri": disk.uri}} | ({"path": path} if path else {})
        changes = {"spec": {"checkpoint": {"storage": storage}}} if remote else {}
        return prepare_run_directory(
            RunRequest(
                job=read_job(merged(JOB, changes)),
                job_file=tmp_path / "job.yaml",
                output=output,
                resume=resume,
                cache_dir=tmp_path / "cache",
                ray_address="ray.example:6379",
            )
        )

    return find


def trained(place, step, *, copied):
    """What a run leaves that has trained so far; copied: to remote storage, instead of here."""
    (place.folder / "events.jsonl").write_text(f"events up to {step}\n")
    saved = save(place.store, step)
    if copied:
        place.remote.put_checkpoint(step, saved)
        place.remote.put_records(place.folder)


def lost(place):
    """The machine with the run's folder is gone."""
    place.folder.rename(place.folder.with_name(f"lost-{place.folder.name}"))


def fetched(place, tmp_path):
    log = EventLog(tmp_path / "log.jsonl")
    return place.checkpoint(log)


def test_where_there_is_nothing_a_run_begins(place, tmp_path):
    begun = place("if-any")

    assert (begun.resumes, begun.step, fetched(begun, tmp_path)) == (False, None, None)
    assert (begun.folder / "rljob.yaml").is_file()


def test_what_lies_here_is_gone_on_from_without_remote_storage_too(place, tmp_path):
    trained(place("if-any", remote=False), 2, copied=False)

    again = place("if-any", remote=False)

    assert (again.resumes, again.step) == (True, 2)
    assert fetched(again, tmp_path) == again.store.path(2)


@pytest.mark.parametrize("resume", ["yes", "if-any"])
def test_a_run_whose_folder_is_lost_goes_on_from_its_copy(place, tmp_path, resume):
    first = place("no")
    trained(first, 2, copied=True)
    lost(first)

    again = place(resume)

    assert (again.resumes, again.step) == (True, 2)
    assert (again.folder / "events.jsonl").read_text() == "events up to 2\n"
    checkpoint = fetched(again, tmp_path)
    assert checkpoint == again.store.path(2)
    assert (checkpoint / "optimizer.pt").read_bytes() == b"moments of 2"


def test_an_older_folder_gives_way_to_a_newer_copy(place, tmp_path):
    trained(place("no"), 2, copied=False)
    newer = place("yes")
    trained(newer, 4, copied=True)
    (newer.folder / "events.jsonl").write_text("events up to 2\n")
    newer.store.path(4).rename(tmp_path / "gone")

    again = place("yes")

    assert again.step == 4
    assert (again.folder / "events.jsonl").read_text() == "events up to 4\n"


def test_a_newer_folder_is_gone_on_from_as_it_is(place, tmp_path):
    first = place("no")
    trained(first, 2, copied=True)
    trained(first, 4, copied=False)

    again = place("yes")

    assert (again.step, again.source) == (4, None)
    assert (again.folder / "events.jsonl").read_text() == "events up to 4\n"


def test_a_new_run_never_writes_over_the_copy_of_another(place):
    first = place("no")
    trained(first, 2, copied=True)
    lost(first)

    with pytest.raises(ConfigError, match="holds a run already; add --resume"):
        place("no")


def test_a_new_run_beside_an_older_one_has_copies_of_its_own(place):
    first = place("no")
    trained(first, 2, copied=True)

    second = place("no")

    assert second.folder != first.folder
    assert second.remote.uri != first.remote.uri


def test_resuming_where_there_is_nothing_names_both_places(place, disk):
    with pytest.raises(ConfigError, match=rf"holds no run, nor does {disk.uri}/spell-backward;"):
        place("yes")


def test_copies_lie_where_the_job_says_else_as_the_folder_is_called(place, disk, tmp_path):
    pods = tmp_path / "var"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RUNS_DIRECTORY", str(pods))
        in_a_pod = place("no", output=pods / "research" / "job-1234")

    assert in_a_pod.remote.uri == f"{disk.uri}/research/job-1234"
    assert place("no", output=tmp_path / "a" / "b").remote.uri == f"{disk.uri}/b"
    assert place("no", path="x/y").remote.uri == f"{disk.uri}/x/y"


def test_pods_share_no_folder_where_storage_is_remote(place, tmp_path):
    def shared(storage):
        job = read_job(merged(JOB, {"spec": {"checkpoint": {"storage": storage}}}))
        return RunRequest(
            job=job,
            job_file=tmp_path / "job.yaml",
            output=None,
            resume="no",
            cache_dir=tmp_path,
            ray_address="ray.example:6379",
        ).shared_storage

    assert shared({"persistentVolumeClaim": {"claimName": "runs"}})
    assert not shared({"remote": {"uri": "s3://bucket"}})


def test_a_damaged_copy_is_not_fetched_twice_and_the_one_before_it_is(place, tmp_path):
    first = place("no")
    trained(first, 2, copied=True)
    trained(first, 4, copied=True)
    lost(first)
    again = place("yes")
    fetched(again, tmp_path)

    with pytest.raises(CheckpointDamaged), again.disowning_damaged():
        again.store.set_aside(4)
        raise CheckpointDamaged("a bit was flipped")

    assert place("yes").step == 2
