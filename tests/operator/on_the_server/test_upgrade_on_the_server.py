"""An operator with other images comes, and goes back, while a job trains, on a real API server."""

import pytest
from job_client import phase

from rljob_operator.build.cluster import pod_images

NAME = "spell-backward"


@pytest.mark.parametrize(("before", "after"), [("1", "2"), ("2", "1")], ids=["upgrade", "rollback"])
async def test_a_running_attempt_keeps_its_raycluster_and_the_next_one_has_the_new_images(
    before, after, operator, ray, kube, jobs, make_job, namespace, server
):
    def cluster(number=0):
        path = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{NAME}-{number}"
        return server.request("GET", path).body

    async with operator(tag=before):
        await kube.create(make_job())
        await jobs.until(lambda job: phase(job) == "Running")
    made = cluster()

    async with operator(tag=after) as process:
        await jobs.change(steps=8)
        await jobs.until(lambda job: job["status"]["observedGeneration"] == 2)
        kept, pods = cluster(), await jobs.names("v1", "Pod")
        ray.live(namespace)[0].status = "FAILED"
        process.look_at(NAME)
        again = await jobs.until(
            lambda job: phase(job) == "Running" and job["status"]["attempt"] == 1
        )

    assert kept["spec"] == made["spec"]
    assert kept["metadata"]["generation"] == made["metadata"]["generation"]
    assert pod_images(made) == {f"example.com/runtime:{before}"}
    assert f"{NAME}-0-head" in pods
    assert pod_images(cluster(1)) == {f"example.com/runtime:{after}"}
    assert again["status"]["failures"][-1]["reason"] == "DriverFailed"
