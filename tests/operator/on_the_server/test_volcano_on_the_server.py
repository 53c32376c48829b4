"""PodGroups of jobs in Volcano's queues, on a real API server without Volcano.

The kind is written after the types of volcano.sh/apis, whose module has no CRD.
"""

import pytest
from job_client import running, until

GROUPS = ("scheduling.volcano.sh/v1beta1", "PodGroup")
NAME = "spell-backward"
QUANTITIES = {"x-kubernetes-int-or-string": True}
COUNT = {"type": "integer", "format": "int32", "minimum": 0}
SPEC = {
    "minMember": COUNT,
    "minTaskMember": {"type": "object", "additionalProperties": COUNT},
    "minResources": {"type": "object", "additionalProperties": QUANTITIES},
    "queue": {"type": "string", "default": "default", "maxLength": 253},
    "priorityClassName": {"type": "string", "maxLength": 253},
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "properties": SPEC}},
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module", autouse=True)
async def podgroups(server):
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert server.request("POST", path, CRD).code == 201
    kinds = "/apis/scheduling.volcano.sh/v1beta1/podgroups"
    await until(lambda: server.request("GET", kinds, accept="*/*").code == 200)


async def test_a_jobs_pods_are_a_group_of_its_queue_until_they_are_given_back(
    operator, ray, kube, jobs, make_job, namespace
):
    scheduling = {"scheduler": "volcano", "queue": "research"}
    async with operator("--volcano") as process:
        await kube.create(make_job(scheduling=scheduling))
        await jobs.until(running)
        group = await kube.get(*GROUPS, namespace, f"{NAME}-0")
        await jobs.change(suspend=True)
        await until(lambda: not ray.live(namespace))
        process.look_at(NAME)
        await jobs.until_names(*GROUPS, [])
        await jobs.change(suspend=False)
        await jobs.until_names(*GROUPS, [f"{NAME}-1"])

    assert group["spec"] == {
        "minMember": 3,
        "minTaskMember": {"head": 1, "worker": 1, "warehouse": 1},
        "minResources": {"cpu": "0.3", "memory": group["spec"]["minResources"]["memory"]},
        "queue": "research",
    }
