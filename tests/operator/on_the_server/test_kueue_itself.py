"""Jobs in the queues of Kueue itself, on a real API server: who runs is its own decision."""

import pytest
from job_client import condition, of_attempt, phase, running, until
from kueue_crds import OTHERS, make_kueues_kinds
from programs import require
from real_kueue import API, make_queue, program, real_kueue

WORKLOADS = ("kueue.x-k8s.io/v1beta2", "Workload")
CLUSTERS = ("ray.io/v1", "RayCluster")
DEVICES = "huawei.com/Ascend910"
KUEUE = {"scheduler": "kueue", "queue": "research"}
OPTIONS = ("--kueue", "--emulated-device-plugin")


@pytest.fixture(scope="module")
def kueue(server, kueues_kinds, tmp_path_factory):
    require("kueue-controller", program(), "RLJOB_KUEUE names no program of Kueue's")
    make_kueues_kinds(server, OTHERS)
    with real_kueue(server, tmp_path_factory.mktemp("kueue")):
        yield


@pytest.fixture
def queue(server, kueue, namespace):
    """queue(1): a LocalQueue `research` with quota for so many worker pods of a device each."""
    return lambda workers: make_queue(server, namespace, workers=workers, resource=DEVICES)


async def test_of_two_jobs_with_quota_for_one_the_second_runs_after_the_first(
    operator, ray, kube, jobs, make_job, namespace, queue
):
    queue(1)
    async with operator(*OPTIONS) as process:
        await kube.create(make_job("ant", scheduling=KUEUE))
        await jobs.until(running, "ant")
        await kube.create(make_job("bee", scheduling=KUEUE))
        waits = await jobs.until(
            lambda job: "insufficient" in condition(job, "Admitted").get("message", ""), "bee"
        )
        clusters = await jobs.names(*CLUSTERS)
        cluster = await kube.get(*CLUSTERS, namespace, "ant-0")
        ray.live(namespace)[0].status = "SUCCEEDED"
        process.look_at("ant")
        await jobs.until(running, "bee")
        done = await kube.get(*WORKLOADS, namespace, "ant-rljob")

    assert phase(waits) == "Queued"
    assert clusters == ["ant-0"]
    worker = cluster["spec"]["workerGroupSpecs"][0]["template"]
    assert worker["spec"]["nodeSelector"] == {"chip": "910b"}
    assert condition(done, "Finished")["reason"] == "Succeeded"


async def test_a_job_that_kueue_preempts_goes_on_when_kueue_admits_it_again(
    operator, ray, kube, jobs, make_job, namespace, queue, server
):
    queue(1)
    name = f"high-{namespace}"
    body = {"kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": 100}
    body["apiVersion"] = "kueue.x-k8s.io/v1beta2"
    assert server.request("POST", f"{API}/workloadpriorityclasses", body).code == 201
    async with operator(*OPTIONS) as process:
        await kube.create(make_job("low", scheduling=KUEUE))
        await jobs.until(running, "low")
        await kube.create(make_job("high", scheduling=KUEUE | {"priorityClass": name}))
        await until(lambda: ray.of(namespace)[0].status == "STOPPED")
        process.look_at("low")
        await jobs.until(running, "high")
        low = await jobs.until(lambda job: phase(job) == "Queued", "low")
        ray.live(namespace)[0].status = "SUCCEEDED"
        process.look_at("high")
        resumed = await jobs.until(of_attempt(1), "low")

    assert low["status"].get("restarts", 0) == 0
    assert resumed["status"]["failures"] == []
    assert [driver.status for driver in ray.of(namespace)] == ["STOPPED", "SUCCEEDED", "RUNNING"]


async def test_a_job_that_kueue_admits_in_part_generates_with_fewer_devices(
    operator, ray, kube, jobs, make_job, namespace, queue
):
    queue(3)
    placement = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 3}
    spec = {"placement": placement, "accelerator": {"nodes": None, "devicesPerNode": 1}}
    async with operator(*OPTIONS):
        scheduling = KUEUE | {"minRolloutDevices": 1}
        await kube.create(make_job(scheduling=scheduling, batch={"globalBatchSize": 12}, **spec))
        job = await jobs.until(running)

    assert (
        "with 3 of 4 worker pods, so that 2 devices generate"
        in condition(job, "Admitted")["message"]
    )


async def test_a_deactivated_job_leaves_its_pods_and_waits_until_it_is_active(
    operator, ray, kube, jobs, make_job, namespace, queue, server
):
    queue(1)
    path = f"{API}/namespaces/{namespace}/workloads/spell-backward-rljob"
    merge = {"content_type": "application/merge-patch+json"}
    async with operator(*OPTIONS) as process:
        await kube.create(make_job(scheduling=KUEUE))
        await jobs.until(running)
        server.request("PATCH", path, {"spec": {"active": False}}, **merge)
        await until(lambda: not ray.live(namespace))
        process.look_at("spell-backward")
        waits = await jobs.until(
            lambda job: (
                "is deactivated" in condition(job, "Admitted").get("message", "")
                and phase(job) == "Queued"
            )
        )
        await jobs.until_names("v1", "Pod", [])
        server.request("PATCH", path, {"spec": {"active": True}}, **merge)
        await jobs.until(of_attempt(1))

    assert not running(waits)
