"""spec.tracking: what is taken, what is refused, and where keys come from."""

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.load import read_job
from rljob_api.problems import InvalidJob
from rljob_operator.build.cluster import Groups, ray_cluster
from rljob_operator.identity import Identity
from rljob_runtime.run_request import spec_digest
from rljob_runtime.tracking.table import PACKAGES, tracking_problems

SERVER = "http://mlflow.tools:5000"


def job_with(tracking: dict[str, Any] | None) -> Any:
    job = json.loads(json.dumps(SMALL_JOB))
    if tracking is not None:
        job["spec"]["tracking"] = tracking
    return read_job(job)


@pytest.mark.parametrize(
    ("tracking", "told"),
    [
        ({}, "spec.tracking: names no tracker; give tensorboard, wandb or mlflow"),
        ({"tensorbord": {}}, "tensorboard"),
        ({"mlflow": {}}, "trackingUri"),
        ({"mlflow": {"trackingUri": "http://me:secret@mlflow"}}, "trackingUri"),
        ({"mlflow": {"trackingUri": "file:///tmp"}}, "trackingUri"),
        ({"wandb": {"mode": "disabled"}}, "'online' or 'offline'"),
        ({"wandb": {"apiKey": "k"}}, "apiKey"),
        ({"tensorboard": {}, "timeoutSeconds": 0}, "timeoutSeconds"),
    ],
)
def test_what_makes_no_sense_is_refused(tracking: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        job_with(tracking)

    assert any(told in str(problem) for problem in refused.value.problems)


def test_a_run_may_be_resumed_with_other_trackers() -> None:
    assert spec_digest(job_with(None)) == spec_digest(job_with({"tensorboard": {}}))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_tracker_whose_package_is_not_installed_is_named_with_its_extra(name: str) -> None:
    problems = [str(problem) for problem in tracking_problems(job_with({name: {}}).spec)]

    try:
        version(PACKAGES[name])
    except PackageNotFoundError:
        (problem,) = problems
        assert problem.startswith(f"spec.tracking.{name}: needs the package {name}")
        assert f"install rljob[{name}]" in problem
    else:
        assert problems == []


def test_mlflow_needs_no_package() -> None:
    assert list(tracking_problems(job_with({"mlflow": {"trackingUri": SERVER}}).spec)) == []
