"""Jobs as Workloads of Kueue, with Kueue's own CRDs on a real API server; its controller is a stand-in."""

import pytest
from fake_kueue import NO_QUOTA, FakeKueue
from job_client import condition, of_attempt, phase, running, says, until

WORKLOADS = ("kueue.x-k8s.io/v1beta2", "Workload")
CLUSTERS = ("ray.io/v1", "RayCluster")
NAME = "spell-backward"
WORKLOAD = f"{NAME}-rljob"
KUEUE = {"scheduler": "kueue", "queue": "research"}
TAINT = {"key": "npu", "operator": "Exists", "effect": "NoSchedule"}
CHECK = {
    "name": "autoscaler",
    "state": "Ready",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
    "message": "",
    "podSetUpdates": [
        {"name": "worker", "nodeSelector": {"request": "7"}, "labels": {"made": "now"}}
    ],
}


@pytest.fixture
def flavor(server, kueues_kinds, namespace):
    """A ResourceFlavor of nodes with labels and a taint."""
    server.request(
        "POST",
        "/apis/kueue.x-k8s.io/v1beta2/resourceflavors",
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": namespace},
            "spec": {"nodeLabels": {"chip": "910b"}, "tolerations": [TAINT]},
        },
    )
    return namespace


@pytest.fixture
def kueue(server, flavor, namespace):
    """`async with kueue(workers=1)`: a quota of so many worker pods."""
    return lambda workers, **more: FakeKueue(
        server, namespace, workers=workers, flavor=flavor, **more
    )


@pytest.fixture
def priority(server, kueues_kinds, namespace):
    """priority("high", 100): the name of a WorkloadPriorityClass of this value."""

    def make(name, value):
        name = f"{name}-{namespace}"
        body = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        path = "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses"
        assert server.request("POST", path, body).code == 201
        return name

    return make


async def test_a_job_starts_nothing_until_kueue_admits_it_and_gives_its_quota_back_at_its_end(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    async with kueue(0, checks=(CHECK,)) as queues, operator("--kueue") as process:
        await kube.create(make_job(scheduling=KUEUE))
        told = f"waits for Kueue to admit Workload {WORKLOAD} in queue research: {NO_QUOTA}"
        waits = await jobs.until(lambda job: condition(job, "Admitted").get("message") == told)
        there = [await jobs.names(*CLUSTERS), await jobs.names("v1", "Pod")]
        await queues.grow(1)
        await jobs.until(running)
        cluster = await kube.get(*CLUSTERS, namespace, f"{NAME}-0")
        admitted = await jobs.until_object(*WORKLOADS, WORKLOAD, says("PodsReady", "True"))
        ray.live(namespace)[0].status = "SUCCEEDED"
        process.look_at(NAME)
        done = await jobs.until_object(*WORKLOADS, WORKLOAD, says("Finished", "True"))
        ended = await jobs.until(lambda job: phase(job) == "Succeeded")
        await jobs.until_events(["Queued", "Admitted", "PodsReady", "Running", "StepsDone"])

    assert there == [[], []]
    assert (phase(waits), "startTime" in waits["status"]) == ("Queued", False)
    assert condition(ended, "Admitted")["message"] == "by ClusterQueue all"
    assert not [key for key in cluster["metadata"]["labels"] if "kueue" in key]
    worker, warehouse = (g["template"] for g in cluster["spec"]["workerGroupSpecs"])
    head = cluster["spec"]["headGroupSpec"]["template"]
    assert head["spec"]["nodeSelector"] == {"chip": "910b"}
    assert worker["spec"]["nodeSelector"] == {"chip": "910b", "request": "7"}
    assert "nodeSelector" not in warehouse["spec"]  # it goes wherever its worker goes
    assert all(TAINT in t["spec"]["tolerations"] for t in (head, worker, warehouse))
    assert worker["metadata"]["labels"] | {"made": "now"} == worker["metadata"]["labels"]
    assert [owner["kind"] for owner in admitted["metadata"]["ownerReferences"]] == ["RLJob"]
    assert {s["name"]: s["count"] for s in admitted["spec"]["podSets"]} == {
        "head": 1, "worker": 1, "warehouse": 1,
    }  # fmt: skip
    assert condition(done, "Finished")["reason"] == "Succeeded"


async def test_an_evicted_job_leaves_a_checkpoint_gives_its_quota_back_and_goes_on_when_admitted_again(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    async with kueue(1) as queues, operator("--kueue") as process:
        await kube.create(make_job(scheduling=KUEUE))
        await jobs.until(running)
        (driver,) = ray.live(namespace)
        saved = {"step": 2, "path": "/c", "time": "2026-01-01T00:00:00Z"}
        driver.report = {"progress": {"step": 2, "totalSteps": 4}, "checkpoint": saved}
        process.look_at(NAME)
        await jobs.until(lambda job: job["status"].get("lastCheckpoint"))
        queues.workers = 0
        await queues.evict(WORKLOAD, message="Preempted for a job of more priority")
        await until(lambda: driver.status == "STOPPED")
        process.look_at(NAME)
        waits = await jobs.until(lambda job: phase(job) == "Queued")
        back = await jobs.until_object(*WORKLOADS, WORKLOAD, says("QuotaReserved", "False"))
        there = [await jobs.names(*CLUSTERS), await jobs.names("v1", "Pod")]
        await queues.grow(1)
        resumed = await jobs.until(of_attempt(1))
        again = await queues.get(WORKLOAD)

    assert there == [[], []]
    assert "admission" not in back["status"]
    assert condition(back, "Admitted")["status"] == "False"
    assert (condition(back, "Requeued")["status"], condition(back, "Requeued")["reason"]) == (
        "True", "Preempted",
    )  # fmt: skip
    assert waits["status"]["lastCheckpoint"]["step"] == 2
    assert (resumed["status"].get("restarts", 0), resumed["status"]["failures"]) == (0, [])
    assert again["metadata"]["uid"] == back["metadata"]["uid"]  # its place in the queue stays
    assert condition(again, "Evicted")["status"] == "False"
    told = [e["message"] for e in await jobs.events() if e["reason"] == "Evicted"]
    assert told == ["leaving a checkpoint", "Preempted for a job of more priority"]


async def test_of_two_jobs_with_quota_for_one_each_the_other_waits_without_pods_until_the_first_has_ended(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    wants = {"scheduling": KUEUE, "accelerator": {"nodes": 2, "devicesPerNode": 1}}
    async with kueue(3) as queues, operator("--kueue") as process:
        for name in ("ant", "bee"):
            await kube.create(make_job(name, **wants))
        await until(lambda: len(ray.live(namespace)) == 1)
        (driver,) = ray.live(namespace)
        first = driver.place[1].removesuffix("-0")
        second = {"ant": "bee", "bee": "ant"}[first]
        waits = await jobs.until(
            lambda job: NO_QUOTA in condition(job, "Admitted")["message"], second
        )
        clusters = await jobs.names(*CLUSTERS)
        driver.status = "SUCCEEDED"
        process.look_at(first)
        await jobs.until(running, second)

    assert clusters == [f"{first}-0"]
    assert phase(waits) == "Queued"
    assert not condition(waits, "Held")
    assert queues.most == 2


async def test_a_job_of_more_priority_takes_the_quota_of_another_one_which_goes_on_after_it(
    operator, ray, kube, jobs, make_job, namespace, kueue, priority
):
    high = KUEUE | {"priorityClass": priority("high", 100)}
    async with kueue(1) as queues, operator("--kueue") as process:
        await kube.create(make_job("low", scheduling=KUEUE))
        await jobs.until(running, "low")
        await kube.create(make_job("high", scheduling=high))
        await until(lambda: ray.of(namespace)[0].status == "STOPPED")
        process.look_at("low")
        await jobs.until(running, "high")
        await jobs.until(lambda job: phase(job) == "Queued", "low")
        ray.live(namespace)[0].status = "SUCCEEDED"
        process.look_at("high")
        await jobs.until(of_attempt(1), "low")
        asked = await queues.get("high-rljob")

    assert queues.most == 1
    assert asked["spec"]["priority"] == 100
    assert asked["spec"]["priorityClassRef"]["name"] == high["priorityClass"]


async def test_a_class_that_is_missing_is_told_and_the_job_waits_for_it(
    operator, kube, jobs, make_job, kueue, namespace, priority
):
    name = f"late-{namespace}"
    async with kueue(1), operator("--kueue") as process:
        await kube.create(make_job(scheduling=KUEUE | {"priorityClass": name}))

        async def told():
            return [e for e in await jobs.events() if e["reason"] == "NoPriorityClass"]

        while not (events := await told()):
            pass
        priority("late", 1)
        process.look_at(NAME)
        await jobs.until(running)

    assert name in events[0]["message"]
    assert events[0]["type"] == "Warning"


async def test_where_kueue_admits_a_part_of_the_workers_fewer_devices_generate(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    placement = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 3}
    spec = {"placement": placement, "accelerator": {"nodes": None, "devicesPerNode": 1}}
    async with kueue(3) as queues, operator("--kueue"):
        batch = {"globalBatchSize": 12}
        scheduling = KUEUE | {"minRolloutDevices": 1}
        await kube.create(make_job(scheduling=scheduling, batch=batch, **spec))
        job = await jobs.until(running)
        config = await kube.get("v1", "ConfigMap", namespace, f"{NAME}-rljob")
        workload = await queues.get(WORKLOAD)
        pods = [name for name in await jobs.names("v1", "Pod") if "-worker-" in name]

    (asked,) = [s for s in workload["spec"]["podSets"] if s["name"] == "worker"]
    assert (asked["count"], asked["minCount"]) == (4, 2)
    assert len(pods) == 3
    assert "rolloutDevices: 2" in config["data"]["rljob.yaml"]
    assert (
        "with 3 of 4 worker pods, so that 2 devices generate"
        in condition(job, "Admitted")["message"]
    )


async def test_a_suspended_job_leaves_the_queue_and_asks_anew_when_it_goes_on(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    async with kueue(1), operator("--kueue") as process:
        await kube.create(make_job(scheduling=KUEUE))
        await jobs.until(running)
        await jobs.change(suspend=True)
        await until(lambda: not ray.live(namespace))
        process.look_at(NAME)
        await jobs.until(lambda job: phase(job) == "Suspended")
        await jobs.until_names(*WORKLOADS, [])
        await jobs.change(suspend=False)
        resumed = await jobs.until(of_attempt(1))

    assert resumed["status"].get("restarts", 0) == 0


async def test_a_running_job_whose_workload_somebody_deletes_stops_and_asks_anew(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    async with kueue(1), operator("--kueue") as process:
        await kube.create(make_job(scheduling=KUEUE))
        await jobs.until(running)
        await kube.delete(*WORKLOADS, namespace, WORKLOAD)
        await until(lambda: not ray.live(namespace))
        process.look_at(NAME)
        await jobs.until(of_attempt(1))

    assert [driver.status for driver in ray.of(namespace)] == ["STOPPED", "RUNNING"]


async def test_a_job_whose_raycluster_is_kueues_workload_goes_on_undisturbed_when_the_operator_makes_them(
    operator, ray, kube, jobs, make_job, namespace, kueue
):
    async with operator():
        await kube.create(make_job(scheduling=KUEUE))
        await jobs.until(running)
        before = await kube.get(*CLUSTERS, namespace, f"{NAME}-0")

    async with kueue(1), operator("--kueue") as process:
        await jobs.change(steps=8)
        job = await jobs.until(lambda job: job["status"]["observedGeneration"] == 2)
        await until(lambda: process.passes() >= 2)
        after = await kube.get(*CLUSTERS, namespace, f"{NAME}-0")
        workloads = await jobs.names(*WORKLOADS)

    assert running(job)
    assert before["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert workloads == []
    assert len(ray.of(namespace)) == 1
