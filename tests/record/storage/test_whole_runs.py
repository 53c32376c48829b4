"""Whole runs whose checkpoints go to an S3 server."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from remote_runs import SECRET
from whole_runs import SMALL_JOB, run

from rljob_runtime.record.remote import open_remote

pytestmark = [pytest.mark.run]


@pytest.fixture
def job_file(s3, tmp_path: Path) -> Callable[[int], Path]:
    """Writes the small job with so many steps, its copies in the bucket."""

    def write(steps: int) -> Path:
        storage = {"remote": {"uri": s3.uri, "endpoint": s3.endpoint}}
        spec = {
            "steps": steps,
            "accelerator": {"type": "emulated", "devicesPerNode": 1},
            "checkpoint": {"every": 1, "keep": 1, "storage": storage},
        }
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(SMALL_JOB | {"spec": SMALL_JOB["spec"] | spec}))
        return file

    return write


def test_a_run_whose_machine_is_lost_goes_on_from_its_copy(job_file, s3, tmp_path) -> None:
    folder = tmp_path / "run"
    remote = open_remote(s3, "run")

    first = run(job_file(2), folder, "--resume-if-any")
    copied = remote.steps()
    shutil.rmtree(folder)
    second = run(job_file(4), folder, "--resume-if-any")

    assert first.code == 0, first.output
    assert second.code == 0, second.output
    assert copied == [2]
    assert remote.steps() == [4]
    assert [event["step"] for event in second.of_kind("step")] == [1, 2, 3, 4]
    assert second.of_kind("run_started")[-1]["resumed_from"] == 2
    assert [event["status"] for event in second.of_kind("run_finished")] == ["succeeded"] * 2
    names = {path.removeprefix(f"{remote.root}/") for path in remote.fs.find(remote.root)}
    assert {"events.jsonl", "rljob.yaml", "report.html"} <= names
    events = remote.fs.cat_file(f"{remote.root}/events.jsonl").decode()
    assert '"status":"succeeded"' in events.splitlines()[-1]

    everything = [remote.fs.cat_file(path) for path in remote.fs.find(remote.root)]
    everything += [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert SECRET not in first.output + second.output
    assert not any(SECRET.encode() in content for content in everything)


def test_a_run_that_cannot_write_its_copies_trains_nothing(job_file, s3, tmp_path) -> None:
    job = yaml.safe_load(job_file(2).read_text())
    job["spec"]["checkpoint"]["storage"]["remote"]["uri"] = "s3://no-such-bucket/runs"
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    finished = run(tmp_path / "job.yaml", tmp_path / "run", "--resume-if-any")

    assert finished.code == 1
    assert "s3://no-such-bucket/runs/run cannot be read" in finished.output
    assert "Traceback" not in finished.output
    assert not (tmp_path / "run").exists()
