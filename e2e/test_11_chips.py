"""Chips fail under a job: one warns and is left after a checkpoint; one breaks, and its pod goes at once.

The emulated device plugin reports both as Ascend's does, and the operator reads that.
"""

import pytest
from support.chips import chips_of, set_broken
from support.cluster import Cluster, Manifest
from support.jobs import CLAIM, STARTED_SECONDS, condition, events_of, holds, small, step

pytestmark = [pytest.mark.nightly]

JOB = "mover"
STEPS = 5000
REPLACED_SECONDS = STARTED_SECONDS + 120


@pytest.fixture(scope="module")
def job(reading: None, cluster: Cluster) -> str:
    """One device, and no checkpoint but the first and those that are asked for."""
    storage = {"persistentVolumeClaim": {"claimName": CLAIM}}
    cluster.apply(small(JOB, steps=STEPS, checkpoint={"every": STEPS, "storage": storage}))
    cluster.wait_for_job(
        JOB,
        "it trains on healthy chips",
        lambda job: step(job) >= 3 and holds(job, "AcceleratorHealthy"),
        seconds=STARTED_SECONDS + 240,
    )
    return JOB


def worker_of(cluster: Cluster) -> Manifest:
    """The worker pod that nobody deletes."""
    (pod,) = [p for p in cluster.pods(JOB, "worker") if "deletionTimestamp" not in p["metadata"]]
    return pod


def mark_one(cluster: Cluster, worker: Manifest, level: str) -> str:
    """A chip that the pod has is at this level from now on; its name."""
    chip = min(chips_of(cluster, worker["metadata"]["name"]))
    set_broken(cluster, worker["spec"]["nodeName"], f"{chip}:{level}")
    return f"Ascend910-{chip}"


def told(cluster: Cluster, reason: str) -> list[str]:
    """What Kubernetes' events of this reason say."""
    return [e["message"] for e in cluster.objects("Event") if e["reason"] == reason]


def replaced(cluster: Cluster, before: Manifest, worker: Manifest) -> Manifest:
    """The job once another pod has its device and it trains on."""
    name = worker["metadata"]["name"]
    cluster.wait(
        "v1", "Pod", f"pod {name} is gone", lambda pods: name not in pods, seconds=REPLACED_SECONDS
    )
    there = cluster.job(JOB)
    return cluster.wait_for_job(
        JOB,
        "it trains on other chips",
        lambda job: step(job) > step(there) + 3 and holds(job, "AcceleratorHealthy"),
        seconds=REPLACED_SECONDS,
    )


def test_a_chip_that_warns_is_left_after_a_checkpoint(cluster: Cluster, job: str) -> None:
    before, worker = cluster.job(job), worker_of(cluster)
    node = worker["spec"]["nodeName"]

    chip = mark_one(cluster, worker, "SubHealthFault")
    try:
        hit = cluster.wait_for_job(
            job, "the chip is told", lambda job: job["status"].get("faultyChips"), seconds=60
        )
        after = replaced(cluster, before, worker)
    finally:
        set_broken(cluster, node, "")

    (faulty,) = hit["status"]["faultyChips"]
    assert (faulty["node"], faulty["chip"], faulty["level"]) == (node, chip, "SubHealthFault")
    assert f"chip {chip} of node {node} reports SubHealthFault" in told(cluster, "ChipWarns")[0]
    assert after["status"]["lastCheckpoint"]["step"] >= faulty["step"] >= step(before)
    assert after["status"]["attempt"] == 0
    recovered = [event for event in events_of(cluster, job) if event["kind"] == "recovery"]
    assert recovered[-1]["step"] >= faulty["step"]  # nothing from before the checkpoint was lost
    assert worker_of(cluster)["spec"]["nodeName"] != node


def test_a_chip_that_breaks_takes_its_pod_with_it_and_heals(cluster: Cluster, job: str) -> None:
    before, worker = cluster.job(job), worker_of(cluster)
    node = worker["spec"]["nodeName"]

    chip = mark_one(cluster, worker, "SeparateNPU")
    try:
        after = replaced(cluster, before, worker)
        present = worker_of(cluster)
        chips = chips_of(cluster, present["metadata"]["name"])
    finally:
        set_broken(cluster, node, "")
    healed = cluster.wait_for_job(
        job, "the chip is forgotten", lambda job: not job["status"].get("faultyChips"), seconds=60
    )

    assert f"chip {chip} of node {node} reports SeparateNPU" in told(cluster, "ChipBroken")[0]
    assert after["status"]["attempt"] == 0
    assert present["spec"]["nodeName"] != node or chip.rpartition("-")[2] not in chips
    assert condition(healed, "AcceleratorHealthy")["reason"] == "ChipsHealthy"
