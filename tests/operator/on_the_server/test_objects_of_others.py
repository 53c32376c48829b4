"""Objects that somebody else made under the names of a job's are neither changed nor deleted."""

from typing import Any

import pytest
from job_client import condition, phase, running

NAME = "spell-backward"
OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "site", "uid": "1234"}
CLUSTER = {
    "headGroupSpec": {
        "rayStartParams": {},
        "template": {
            "metadata": {"labels": {}},
            "spec": {"containers": [{"name": "ray", "image": "example.com/ray:1"}]},
        },
    },
    "workerGroupSpecs": [],
}
OTHERS: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "a Secret of nobody": ("v1", "Secret", f"{NAME}-rljob", {"stringData": {"mine": "yes"}}, "nobody"),
    "a ConfigMap of a Deployment": (
        "v1", "ConfigMap", f"{NAME}-rljob", {"data": {"mine": "yes"}}, "Deployment site",
    ),
    "a RayCluster of nobody": (
        "ray.io/v1", "RayCluster", f"{NAME}-0", {"spec": CLUSTER}, "nobody",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
async def test_a_job_waits_until_an_object_that_is_not_its_own_is_gone(
    operator, ray, kube, jobs, make_job, namespace, case
):
    version, kind, name, content, of = OTHERS[case]
    metadata: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "labels": {"rljob.io/job": NAME},
    }
    if of != "nobody":
        metadata["ownerReferences"] = [OWNER]
    made = await kube.create({"apiVersion": version, "kind": kind, "metadata": metadata, **content})

    async with operator() as process:
        await kube.create(make_job())
        await jobs.until_events(["Refused"])
        process.look_at(NAME)
        waits = await jobs.until(
            lambda job: "belongs to" in condition(job, "ClusterReady").get("message", "")
        )
        there = await kube.get(version, kind, namespace, name)
        await kube.delete(version, kind, namespace, name)
        process.look_at(NAME)
        await jobs.until(running)

    said = condition(waits, "ClusterReady")["message"]
    assert f"{kind} {namespace}/{name} is there already and belongs to {of}, not to this" in said
    assert phase(waits) == "Starting"
    assert there["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_suspended_job_deletes_no_raycluster_that_took_the_place_of_its_own(
    operator, ray, kube, jobs, make_job, namespace
):
    cluster = ("ray.io/v1", "RayCluster", namespace, f"{NAME}-0")
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)
        own = await kube.get(*cluster)
        await kube.delete(*cluster)
        await kube.create(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"namespace": namespace, "name": f"{NAME}-0"},
                "spec": CLUSTER,
            }
        )
        await jobs.change(suspend=True)
        process.look_at(NAME)
        await jobs.until(lambda job: phase(job) == "Suspended")

    assert (await kube.get(*cluster))["metadata"]["uid"] != own["metadata"]["uid"]
