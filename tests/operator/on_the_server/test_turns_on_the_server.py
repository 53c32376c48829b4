"""Two jobs with half of the devices each on a real API server; the test is the scheduler."""

import time

import pytest
from job_client import condition, running, until

from rljob_operator.decide.draft import rfc3339
from rljob_operator.decide.turns import PATIENCE_SECONDS

JOBS = ("ant", "bee")


@pytest.fixture
def workers(jobs):
    """Names of the worker pods of all jobs."""

    async def named():
        return [name for name in await jobs.names("v1", "Pod") if "-worker-" in name]

    return named


def held(job):
    return condition(job, "Held").get("status")


def replicas(cluster):
    return [group["replicas"] for group in cluster["spec"]["workerGroupSpecs"]]


async def test_the_job_that_began_later_gives_its_pods_back_until_the_other_one_has_all(
    operator, kuberay, kube, jobs, make_job, namespace, workers
):
    kuberay.places = False
    since = rfc3339(time.time() - 2 * PATIENCE_SECONDS)
    others = [
        f"{name}-0-{rest}" for name in JOBS for rest in ("head", "warehouse-0", "warehouse-1")
    ]

    async with operator("--emulated-device-plugin") as process:
        for name in JOBS:
            await kube.create(make_job(name, accelerator={"nodes": 2, "devicesPerNode": 1}))
        pods = [f"{name}-0-worker-{number}" for name in JOBS for number in (0, 1)]
        await jobs.until_names("v1", "Pod", sorted(others + pods))
        for name in JOBS:
            await kuberay.place(namespace, f"{name}-0-worker-0", since=since)
            await kuberay.refuse(namespace, f"{name}-0-worker-1", since=since)
        first, second = sorted([await jobs.get(name) for name in JOBS], key=place)
        elder, younger = first["metadata"]["name"], second["metadata"]["name"]

        def is_held(job):
            process.look_at(younger)  # whose next look would be after 15 s
            return held(job) == "True"

        waits = await jobs.until(is_held, younger)
        await jobs.until_object(
            "ray.io/v1", "RayCluster", f"{younger}-0", lambda cluster: replicas(cluster) == [0, 0]
        )
        kept = sorted(name for name in others + pods if not name.startswith(f"{younger}-0-w"))
        await jobs.until_names("v1", "Pod", kept)

    async with operator("--emulated-device-plugin") as process:
        await until(lambda: process.passes() >= len(JOBS))  # it finds on the cluster who waits
        found = await jobs.get(younger)
        await kuberay.place(namespace, f"{elder}-0-worker-1")
        await jobs.until(running, elder)
        asks = await jobs.until(lambda job: held(job) == "False", younger)
        await jobs.until_names("v1", "Pod", sorted(others + pods))
        for number in (0, 1):
            await kuberay.place(namespace, f"{younger}-0-worker-{number}")
        done = await jobs.until(running, younger)

    told = f"waits for {namespace}/{elder}, which began before it and lacks 1 of 2 worker pods"
    assert condition(waits, "Held")["message"] == told
    assert condition(waits, "ClusterReady")["message"].startswith(told)
    assert condition(found, "Held") == condition(waits, "Held")
    assert condition(asks, "Held")["reason"] == "AsksAgain"
    assert (done["status"]["attempt"], done["status"]["restarts"]) == (0, 0)
    assert [e["reason"] for e in await jobs.events() if e["involvedObject"]["name"] == younger] == [
        "WaitsForJob", "AsksAgain", "PodsReady", "Running",
    ]  # fmt: skip


def place(job):
    metadata = job["metadata"]
    return job["status"]["attemptTime"], metadata["creationTimestamp"], metadata["uid"]
