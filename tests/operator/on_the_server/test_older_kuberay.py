"""A RayCluster whose token the server would not store, as KubeRay before 1.6 defines it, is not made."""

import asyncio
import copy
import functools
from collections.abc import Callable, Iterator

import pytest
from api_server import RAYCLUSTER_CRD, ApiServer
from job_client import condition
from wait_until import wait_until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
FIELDS = {
    "rayVersion": {"type": "string"},
    "headGroupSpec": {"type": "object"} | ANYTHING,
    "workerGroupSpecs": {"type": "array", "items": {"type": "object"} | ANYTHING},
}


CLUSTER = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "metadata": {"name": "probe"},
    "spec": {"authOptions": {"mode": "token"}},
}


@pytest.fixture
def older_kuberay(server: ApiServer, namespace: str) -> Iterator[Callable[[], None]]:
    """The server's RayClusters have no spec.authOptions, until the function is called."""
    versions = RAYCLUSTER_CRD["spec"]["versions"]  # type: ignore[index]
    older = copy.deepcopy(versions)
    spec, status = {"type": "object", "properties": FIELDS}, {"type": "object"} | ANYTHING
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    older[0]["schema"] = {"openAPIV3Schema": schema}
    _define(server, older, namespace, takes_tokens=False)
    upgrade = functools.partial(_define, server, versions, namespace, takes_tokens=True)
    yield upgrade
    upgrade()


def _define(server: ApiServer, versions: object, namespace: str, *, takes_tokens: bool) -> None:
    change, applied = {"spec": {"versions": versions}}, "application/apply-patch+yaml"
    path = f"{CRDS}/rayclusters.ray.io"
    assert server.request("PATCH", path, change, content_type=MERGE).code == 200
    probe = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/probe"
    query = "?dryRun=All&force=true&fieldManager=test"
    wanted = (200, 201) if takes_tokens else (500,)
    wait_until(
        "the definition is in use",
        lambda: (
            server.request("PATCH", probe + query, CLUSTER, content_type=applied).code in wanted
        ),
    )


async def test_a_raycluster_whose_token_the_server_would_drop_is_not_made(
    older_kuberay, operator, ray, kube, jobs, make_job, namespace
):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until_events(["Refused"])
        process.look_at("spell-backward")
        waits = await jobs.until(
            lambda job: "authOptions" in condition(job, "ClusterReady").get("message", "")
        )
        clusters = await jobs.names("ray.io/v1", "RayCluster")
        await asyncio.to_thread(older_kuberay)
        process.look_at("spell-backward")
        await jobs.until_names("ray.io/v1", "RayCluster", ["spell-backward-0"])

    assert clusters == []
    assert "older than the operator needs" in condition(waits, "ClusterReady")["message"]
