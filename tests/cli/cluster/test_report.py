"""`rljob report NAME`: the run's facts come through a shell in the head's pod."""

import json

import pytest
from kube_manifests import FOLDER, JOB, PODS, ended, job

from rljob_runtime.cli.cluster import ask

EVENTS = [
    {"time": 1.0, "kind": "run_started", "name": "words", "steps": 140},
    {"time": 2.0, "kind": "step", "step": 1, "seconds": 1.0, "metrics": {"reward/mean": 0.5}},
    {"time": 3.0, "kind": "warning", "message": "ü" * 20_000},
]


@pytest.fixture
def cluster(server):
    """A cluster with a run of two files, the events larger than one frame."""
    server.jobs, server.pods = [JOB], PODS
    lines = "".join(f"{json.dumps(event, ensure_ascii=False)}\n" for event in EVENTS)
    server.files = {
        f"{FOLDER}/events.jsonl": lines.encode(),
        f"{FOLDER}/rljob.yaml": b"kind: RLJob\n",
    }
    return server


def test_a_jobs_run_is_fetched_and_its_report_written(cluster, rljob, tmp_path):
    result = rljob("report", "words")

    folder = tmp_path / "here" / "runs" / "words"
    assert (result.exit_code, result.stdout) == (0, "runs/words/report.html\n")
    assert (folder / "events.jsonl").read_bytes() == cluster.files[f"{FOLDER}/events.jsonl"]
    assert (folder / "rljob.yaml").read_text() == "kind: RLJob\n"
    assert json.loads((folder / "cluster.json").read_text()) == JOB
    assert "words" in (folder / "report.html").read_text()


def test_the_traces_come_along_and_nothing_else_that_an_event_names(cluster, rljob, tmp_path):
    names = [f"profile/step-1/rank-0-{state}.json.gz" for state in ("update", "generate")]
    gone, foreign = "profile/step-1/rank-1-update.json.gz", "../../elsewhere"
    told = [{"time": 2.0, "kind": "profile", "step": 1, "rank": 0, "state": "update"}] * 4
    lines = [
        json.dumps({**event, "path": path, "seconds": 1.0, "bytes": 5})
        for event, path in zip(told, [*names, gone, foreign], strict=True)
    ]
    cluster.files[f"{FOLDER}/events.jsonl"] += "".join(f"{line}\n" for line in lines).encode()
    cluster.files |= {f"{FOLDER}/{name}": b"trace" for name in (*names, foreign)}

    result = rljob("report", "words", "-o", "there/run")

    folder = tmp_path / "here" / "there" / "run"
    assert result.exit_code == 0, result.stderr
    assert {file for file in (folder / "profile").rglob("*") if file.is_file()} == {
        folder / name for name in names
    }
    assert not (tmp_path / "here" / "elsewhere").exists()


def test_a_trace_that_is_here_is_not_fetched_again(cluster, rljob):
    name = "profile/step-1/rank-0-update.json.gz"
    told = {"time": 2.0, "kind": "profile", "step": 1, "rank": 0, "state": "update"}
    line = json.dumps({**told, "path": name, "seconds": 1.0, "bytes": 5})
    cluster.files[f"{FOLDER}/events.jsonl"] += f"{line}\n".encode()
    cluster.files[f"{FOLDER}/{name}"] = b"trace"

    for _ in range(2):
        assert rljob("report", "words", "-o", "there").exit_code == 0

    asked = [command for command in cluster.commands if f"{FOLDER}/{name}" in command]
    assert len(asked) == 1


def test_it_is_fetched_again_into_the_folder_of_before(cluster, rljob):
    assert rljob("report", "words", "-o", "there").exit_code == 0
    cluster.jobs = [ended("Succeeded")]

    assert rljob("report", "words", "-o", "there").stdout == "there/report.html\n"


def test_a_folder_with_another_run_is_left_alone(cluster, rljob, tmp_path):
    own = tmp_path / "here" / "runs" / "words"
    own.mkdir(parents=True)
    (own / "events.jsonl").write_text("of this machine")

    result = rljob("report", "words")

    assert result.exit_code == 2
    assert "runs/words holds another run; name another folder with --output" in result.stderr
    assert (own / "events.jsonl").read_text() == "of this machine"


def test_a_path_that_exists_is_a_folder(cluster, rljob, tmp_path):
    (tmp_path / "here" / "words").mkdir()

    result = rljob("report", "words")

    assert "words holds no events.jsonl; name the folder of a run" in result.stderr
    assert cluster.requests == []
    assert rljob("report", "words", "-o", "x").exit_code == 2


def test_a_path_that_does_not_exist_is_no_jobs_name(cluster, rljob):
    assert "no/where holds no events.jsonl" in rljob("report", "no/where").stderr
    assert cluster.requests == []


def test_a_job_without_a_head_tells_which_claim_holds_the_run(cluster, rljob):
    cluster.pods = []

    message = rljob("report", "words").stderr

    assert message == (
        "words is no folder here, so the cluster is asked for a job: words has no head pod (Running); "
        "the run's folder is research/words-0b9dd3a5 on PersistentVolumeClaim runs\n"
    )


def test_a_job_without_a_claim_has_nothing_left(cluster, rljob):
    cluster.pods, cluster.jobs = [], [job() | {"spec": {"steps": 140}}]

    assert "the run's folder went with its pods" in rljob("report", "words").stderr


def test_a_job_with_remote_storage_left_its_checkpoints_there(cluster, rljob):
    storage = {"remote": {"uri": "s3://bucket/runs"}}
    spec = {"steps": 140, "checkpoint": {"storage": storage}}
    cluster.pods, cluster.jobs = [], [job() | {"spec": spec}]

    assert "at s3://bucket/runs/research/words-0b9dd3a5" in rljob("report", "words").stderr


def test_a_claims_own_folder_is_where_the_run_lies(cluster, rljob):
    elsewhere = job()
    elsewhere["spec"]["checkpoint"]["storage"]["path"] = "mine"
    cluster.jobs = [elsewhere]
    cluster.files = {
        path.replace(FOLDER, "/var/lib/rljob/mine"): text for path, text in cluster.files.items()
    }

    assert rljob("report", "words").exit_code == 0


def test_a_job_that_has_written_nothing_yet(cluster, rljob):
    cluster.files = {}

    assert "words has no events yet (Running): " in rljob("report", "words").stderr


def test_events_above_the_limit_are_refused(cluster, rljob, monkeypatch):
    monkeypatch.setattr(ask, "LIMIT_BYTES", 1000)

    message = rljob("report", "words").stderr

    assert f"{FOLDER}/events.jsonl of pod words-1-head-0 is larger than 1000 bytes" in message
