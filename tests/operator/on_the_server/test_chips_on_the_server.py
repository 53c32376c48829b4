"""A chip fails under a job on a real API server: from the emulated plugin's report to the job's new pod."""

import pytest
from api_server import ADMIN, NOBODY
from job_client import condition, running, until

from rljob_device_plugin.errors import NotReported
from rljob_device_plugin.reports import ApiServer, Reports

NAME = "spell-backward"
CLUSTER = f"{NAME}-0"
WORKER = f"{CLUSTER}-worker-0"
NODE = "a-node"  # where KubeRay's fake puts all pods


def health(job):
    return condition(job, "AcceleratorHealthy").get("status")


@pytest.fixture
def api(server, tmp_path):
    """api(token): the server as the plugin's pod with this token finds it."""

    def of(token=ADMIN):
        (tmp_path / "token").write_text(token)
        return ApiServer(url=server.url, token=tmp_path / "token", ca=server.ca)

    return of


@pytest.fixture
def chips(api, namespace):
    """The report of the node's emulated plugin."""
    return Reports(api(), namespace=namespace, node=NODE, resource="huawei.com/Ascend910", chips=8)


@pytest.fixture
def reading(operator, namespace):
    """The operator, which reads the reports of the test's namespace."""
    return lambda: operator(f"--faults-namespace={namespace}", "--emulated-device-plugin")


async def test_a_pod_on_a_broken_chip_is_replaced_within_the_attempt(
    reading, chips, kuberay, ray, kube, jobs, make_job, namespace
):
    chips.write({})
    async with reading() as process:
        await kube.create(make_job())
        await jobs.until(lambda job: running(job) and health(job) == "True")

        chips.write({3: "SeparateNPU"})
        hit = await jobs.until(lambda job: health(job) == "False")
        going = await jobs.until_object(
            "v1", "Pod", WORKER, lambda pod: "deletionTimestamp" in pod["metadata"]
        )
        await jobs.until_object("ray.io/v1", "RayCluster", CLUSTER, keeps_off)
        (gone,) = await kuberay.replace_deleted_pods(namespace, CLUSTER)
        again = await jobs.until(lambda job: health(job) == "True")
        reported = process.figure("rljob_faulty_chips", level="SeparateNPU")
        chips.write({})
        recovered = await jobs.until(lambda job: not job["status"].get("faultyChips"))

    told = condition(hit, "AcceleratorHealthy")
    assert told["reason"] == "ChipBroken"
    assert told["message"] in [
        f"chip Ascend910-3 of node {NODE} reports SeparateNPU (EMULATED): its pod {WORKER} {is_}"
        for is_ in ("is replaced", "is being replaced")  # as soon as it is deleted
    ]
    assert gone["metadata"]["uid"] == going["metadata"]["uid"]
    (chip,) = again["status"]["faultyChips"]
    assert (chip["chip"], chip["pod"]) == ("Ascend910-3", gone["metadata"]["uid"])
    assert health(recovered) == "True"
    assert (reported, process.figure("rljob_chip_faults_total", level="SeparateNPU")) == (1, 1)
    assert recovered["status"]["attempt"] == 0
    assert len(ray.of(namespace)) == 1
    events = {(event["type"], event["reason"]): event["count"] for event in await jobs.events()}
    assert events[("Warning", "ChipBroken")] == events[("Normal", "ChipsHealthy")] == 1


async def test_a_pod_on_a_chip_that_warns_goes_after_a_checkpoint(
    reading, chips, kuberay, ray, kube, jobs, make_job, namespace
):
    async with reading():
        await kube.create(make_job())
        await jobs.until(running)
        (driver,) = ray.live(namespace)
        driver.report = {"progress": {"step": 3, "totalSteps": 4}}
        await jobs.until(lambda job: job["status"].get("progress", {}).get("step") == 3)

        chips.write({3: "PreSeparateNPU"})
        await jobs.until_object(
            "v1", "Pod", WORKER, lambda pod: "deletionTimestamp" in pod["metadata"]
        )
        moved = await jobs.until(
            lambda job: job["status"].get("lastCheckpoint", {}).get("step") == 3
        )

    assert driver.saved == 1
    assert condition(moved, "AcceleratorHealthy")["reason"] == "ChipWarns"
    assert driver.lives


async def test_an_operator_that_does_not_read_reports_leaves_pods_alone(
    operator, chips, kube, jobs, make_job
):
    chips.write({3: "SeparateNPU"})
    async with operator("--emulated-device-plugin") as process:
        await kube.create(make_job())
        seen = await jobs.until(running)
        before = process.passes()
        process.look_at(NAME)
        await until(lambda: process.passes() > before)

    assert health(seen) is None
    pod = await jobs.until_object("v1", "Pod", WORKER, lambda pod: pod)
    assert "deletionTimestamp" not in pod["metadata"]


async def test_what_the_server_says_against_a_report_is_told(api, namespace):
    with pytest.raises(NotReported, match=r"403 .*nobody.* cannot patch resource"):
        api(NOBODY).call("PATCH", f"/api/v1/namespaces/{namespace}/configmaps/a?fieldManager=b", {})


def keeps_off(cluster):
    templates = {g["groupName"]: g["template"] for g in cluster["spec"]["workerGroupSpecs"]}
    affinity = templates["worker"]["spec"]["affinity"]
    return affinity.get("nodeAffinity") and NODE in str(affinity["nodeAffinity"])
