"""What the release before left behind is resumed from, shown and compared (tests/fixtures/last_release)."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner
from whole_runs import run

from rljob_api.check.load import read_job
from rljob_runtime.cli.main import app

LEFT = Path(__file__).parents[1] / "fixtures" / "last_release"
JOBS = list(yaml.safe_load_all((LEFT / "rljobs.yaml").read_text()))


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Copies of its files, to write beside."""
    return Path(shutil.copytree(LEFT, tmp_path / "left"))


def rljob(*words: object) -> str:
    """What the command prints; it must end with 0."""
    ended = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "120"})
    assert ended.exit_code == 0, ended.output
    return ended.output


@pytest.mark.run
@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_a_run_goes_on_after_its_checkpoint_whatever_version_its_job_has(left, version):
    job = yaml.safe_load((left / "job.yaml").read_text())
    job["apiVersion"] = f"rljob.io/{version}"
    job["spec"]["steps"] = 4
    (left / "job.yaml").write_text(yaml.safe_dump(job))

    ended = run(left / "job.yaml", left / "run", "--resume")

    assert ended.code == 0, ended.output
    assert [event["step"] for event in ended.of_kind("step")] == [1, 2, 3, 4]
    assert "resumed after step 2" in ended.output
    assert ended.of_kind("warning") == []
    state = left / "run" / "checkpoints" / "step-000004" / "state.json"
    assert json.loads(state.read_text())["step"] == 4
    assert "update" in rljob("analyze", left / "run")


def test_its_run_is_reported_watched_compared_and_checked(left):
    run = left / "run"

    rljob("report", run)
    watched = rljob("watch", run)
    compared = rljob("diff", run, run)
    checked = rljob("doctor", run)

    page = (run / "report.html").read_text()
    assert "left" in page
    assert "done: 2 of 2 steps" in watched
    assert "same" in compared
    assert "left is a valid job" in checked and "fail" not in checked


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["metadata"]["name"])
def test_its_jobs_are_valid_in_both_versions(job):
    old = read_job(job)
    new = read_job(job | {"apiVersion": "rljob.io/v1beta1"})

    assert job["apiVersion"] == "rljob.io/v1alpha1"
    assert old.spec == new.spec


def test_its_run_folder_holds_a_job_that_is_valid():
    written = read_job(yaml.safe_load((LEFT / "run" / "rljob.yaml").read_text()))

    assert written.spec.steps == 2
