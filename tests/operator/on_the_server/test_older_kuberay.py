"""A RayCluster whose token the server would not store, as KubeRay before 1.6 defines it, is not made."""

import copy
from collections.abc import Iterator

import pytest
from api_server import RAYCLUSTER_CRD, ApiServer
from job_client import condition

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
FIELDS = {
    "rayVersion": {"type": "string"},
    "headGroupSpec": {"type": "object"} | ANYTHING,
    "workerGroupSpecs": {"type": "array", "items": {"type": "object"} | ANYTHING},
}


@pytest.fixture
def older_kuberay(server: ApiServer) -> Iterator[None]:
    """The server's RayClusters have no spec.authOptions."""
    versions = RAYCLUSTER_CRD["spec"]["versions"]  # type: ignore[index]
    older = copy.deepcopy(versions)
    spec, status = {"type": "object", "properties": FIELDS}, {"type": "object"} | ANYTHING
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    older[0]["schema"] = {"openAPIV3Schema": schema}
    _define(server, older)
    yield
    _define(server, versions)


def _define(server: ApiServer, versions: object) -> None:
    change = {"spec": {"versions": versions}}
    path = f"{CRDS}/rayclusters.ray.io"
    assert server.request("PATCH", path, change, content_type=MERGE).code == 200


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

    assert clusters == []
    assert "older than this operator, upgrade it" in condition(waits, "ClusterReady")["message"]
