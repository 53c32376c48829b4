"""Which folders a run may begin in: a run that began is never written over."""

import pytest
import yaml

from rljob_api.check.load import load_job
from rljob_runtime.errors import ConfigError
from rljob_runtime.run.run_place import prepare_run_directory
from rljob_runtime.run.run_request import RunRequest


def request(file, folder):
    return RunRequest(
        job=load_job(file),
        job_file=file,
        output=folder,
        resume="no",
        cache_dir=folder,
        ray_address=None,
    )


def test_a_folder_that_holds_a_run_is_refused(job_file, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.jsonl").touch()

    with pytest.raises(ConfigError, match="holds a run already; add --resume"):
        prepare_run_directory(request(job_file(), folder))


def test_what_a_run_leaves_that_died_before_its_first_event_is_no_run(job_file, tmp_path):
    folder = tmp_path / "run"
    prepare_run_directory(request(job_file(), folder))
    (folder / "driver-0.log").write_text("Killed")

    assert prepare_run_directory(request(job_file(steps=5), folder)).folder == folder
    assert yaml.safe_load((folder / "rljob.yaml").read_text())["spec"]["steps"] == 5
