"""spec.tracking: what is taken, what is refused, and where keys come from."""

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from cluster_jobs import SETTINGS, identity, make_job
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob
from rljob_operator.build.cluster import GroupOverrides, ray_cluster
from rljob_runtime.report.tracking.tracker_table import PACKAGES, tracking_problems
from rljob_runtime.run.run_request import spec_digest

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
        ({"wandb": {"mode": "disabled"}}, "spec.tracking.wandb.mode"),
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


def test_the_keys_of_a_secret_are_variables_of_the_head_alone() -> None:
    tracking = {"mlflow": {"trackingUri": SERVER}, "secretName": "tracker-keys"}
    job = make_job(nodes=2, tracking=tracking)

    cluster = ray_cluster(job, identity(), SETTINGS, name="sums-1", groups=GroupOverrides())["spec"]

    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    others = [group["template"]["spec"]["containers"][0] for group in cluster["workerGroupSpecs"]]
    assert head["envFrom"] == [{"secretRef": {"name": "tracker-keys"}}]
    assert all("envFrom" not in container for container in others)


def test_a_secret_of_storage_and_trackers_comes_once() -> None:
    storage = {"remote": {"uri": "s3://bucket/runs", "secretName": "keys"}}
    tracking = {"mlflow": {"trackingUri": SERVER}, "secretName": "keys"}
    job = make_job(tracking=tracking, checkpoint={"storage": storage})

    cluster = ray_cluster(job, identity(), SETTINGS, name="sums-1", groups=GroupOverrides())["spec"]

    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert head["envFrom"] == [{"secretRef": {"name": "keys"}}]
