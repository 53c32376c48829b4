"""Both versions of the RLJob resource on a real API server: one object, of which only apiVersion differs."""

import copy
import itertools

import pytest
import yaml
from api_server import ApiServer
from documented import ROOT
from job_client import phase
from wait_until import wait_until

from rljob_api.schema.crd import crd
from rljob_api.spec.rljob import VERSION, VERSIONS

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
BOTH_WAYS = list(itertools.permutations(VERSIONS, 2))
STATUS = {
    "phase": "Running",
    "attempt": 1,
    "restarts": 1,
    "rayCluster": {"name": "spell-backward-0", "submissionId": "rljob-01234567-1", "head": "u/0"},
    "progress": {"step": 7, "totalSteps": 10, "reward": 0.25, "tokensPerSecond": 900},
    "conditions": [
        {
            "type": "Running",
            "status": "True",
            "reason": "DriverRuns",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}


def path_of(namespace, version, name=""):
    return f"/apis/rljob.io/{version}/namespaces/{namespace}/rljobs/{name}".rstrip("/")


def in_version(job, version):
    return job | {"apiVersion": f"rljob.io/{version}"}


def but_version(job):
    return {key: value for key, value in job.items() if key != "apiVersion"}


@pytest.mark.parametrize(("written", "read"), BOTH_WAYS)
def test_a_job_is_read_in_the_other_version_with_its_status_and_managed_fields(
    server, namespace, make_job, written, read
):
    path = path_of(namespace, written, "spell-backward")
    job = in_version(make_job(), written)
    assert server.request("PATCH", f"{path}?fieldManager=ann", job, content_type=APPLY).code == 201
    told = server.request("PATCH", f"{path}/status", {"status": STATUS}, content_type=MERGE)

    here = server.request("GET", path).body
    there = server.request("GET", path_of(namespace, read, "spell-backward")).body

    assert (here["apiVersion"], there["apiVersion"]) == (f"rljob.io/{written}", f"rljob.io/{read}")
    assert here == told.body and here["status"] == STATUS
    assert but_version(there) == but_version(here)
    assert len(there["metadata"]["managedFields"]) == 2


@pytest.mark.parametrize(("written", "read"), BOTH_WAYS)
def test_every_example_is_the_same_job_in_both_versions(server, namespace, written, read):
    jobs = [yaml.safe_load(f.read_text()) for f in sorted((ROOT / "examples").glob("**/*.yaml"))]

    for job in jobs:
        job = in_version(job, written)
        job["metadata"]["namespace"] = namespace
        assert server.request("POST", path_of(namespace, written), job).code == 201
    here = server.request("GET", path_of(namespace, written)).body["items"]
    there = server.request("GET", path_of(namespace, read)).body["items"]

    assert len(here) == len(jobs) >= 17
    assert [but_version(job) for job in there] == [but_version(job) for job in here]


@pytest.mark.parametrize(("written", "changed"), BOTH_WAYS)
def test_one_applier_goes_over_to_the_other_version_and_owns_what_it_owned(
    server, namespace, make_job, written, changed
):
    def apply(who, version, job):
        path = f"{path_of(namespace, version, 'spell-backward')}?fieldManager={who}"
        return server.request("PATCH", path, in_version(job, version), content_type=APPLY)

    apply("ann", written, make_job(backoffLimit=9, activeDeadlineSeconds=900))
    moved = apply("ann", changed, make_job(backoffLimit=8))
    about = {key: make_job()[key] for key in ("kind", "metadata")}
    collision = apply("eve", written, about | {"spec": {"backoffLimit": 7}})

    assert moved.code == 200
    assert moved.body["spec"]["backoffLimit"] == 8
    assert "activeDeadlineSeconds" not in moved.body["spec"]  # given up, so it is gone
    assert [entry["apiVersion"] for entry in moved.body["metadata"]["managedFields"]] == [
        f"rljob.io/{changed}"
    ]
    assert collision.code == 409 and ".spec.backoffLimit" in collision.body["message"]


@pytest.mark.parametrize(("written", "changed"), BOTH_WAYS)
def test_what_never_changes_is_held_against_what_was_written_in_the_other_version(
    server, namespace, make_job, written, changed
):
    made = server.request("POST", path_of(namespace, written), in_version(make_job(), written))
    assert made.code == 201

    path = path_of(namespace, changed, "spell-backward")
    refused = server.request("PATCH", path, {"spec": {"seed": 2}}, content_type=MERGE)
    longer = server.request("PATCH", path, {"spec": {"steps": 8}}, content_type=MERGE)

    assert refused.code == 422 and "seed never changes" in refused.body["message"]
    assert (longer.code, longer.body["spec"]["steps"]) == (200, 8)


async def test_the_operator_runs_a_job_that_was_written_in_the_newest_version(
    server, namespace, make_job, jobs, operator
):
    job = in_version(make_job(), VERSIONS[0])

    async with operator():
        assert server.request("POST", path_of(namespace, VERSIONS[0]), job).code == 201
        await jobs.until(lambda job: phase(job) == "Running")

    told = server.request("GET", path_of(namespace, VERSIONS[0], "spell-backward")).body
    assert told["status"]["phase"] == "Running" and told["apiVersion"] == f"rljob.io/{VERSIONS[0]}"


def test_the_definition_of_the_release_before_may_come_back(server: ApiServer, namespace, make_job):
    """A rollback of the chart. In a group of its own: other tests' jobs keep their versions."""
    new = copy.deepcopy(crd())
    new["spec"]["group"] = "before.io"
    new["metadata"]["name"] = "rljobs.before.io"
    kept = [version for version in new["spec"]["versions"] if version["name"] == VERSION]
    base = f"/apis/before.io/{{}}/namespaces/{namespace}/rljobs"
    job = make_job() | {"apiVersion": f"before.io/{VERSIONS[0]}"}
    assert server.request("POST", CRDS, new).code == 201
    wait_until("the old version is served", lambda: code(server, base.format(VERSIONS[0])) == 200)
    made = server.request("POST", base.format(VERSIONS[0]), job)
    assert made.code == 201, made.body

    change = {"spec": {"versions": kept}}
    back = server.request("PATCH", f"{CRDS}/rljobs.before.io", change, content_type=MERGE)

    assert back.code == 200, back.body
    wait_until("the old version is gone", lambda: code(server, base.format(VERSIONS[0])) == 404)
    wait_until("the new version is served", lambda: code(server, base.format(VERSION)) == 200)
    left = server.request("GET", f"{base.format(VERSION)}/spell-backward").body
    assert but_version(left) == but_version(made.body)
    assert server.request("DELETE", f"{CRDS}/rljobs.before.io").code == 200


def code(server, path):
    return server.request("GET", path, accept="*/*").code
