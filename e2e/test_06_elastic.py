"""Rollout devices are added and removed while a job trains, by `kubectl scale`."""

import pytest
from support.cluster import Cluster
from support.jobs import STARTED_SECONDS, ended, events_of, holds, small, step
from support.tools import run

JOB = "elastic"
STEPS = 300


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> str:
    """One device that updates and one that generates, in one pod of two devices."""
    wanted = small(JOB, steps=STEPS)
    wanted["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": 2}
    wanted["spec"]["batch"]["globalBatchSize"] = 12  # both 1 and 3 devices share it evenly
    wanted["spec"]["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    cluster.apply(wanted)
    cluster.wait_for_job(
        JOB, "it trains", lambda job: step(job) >= 2, seconds=STARTED_SECONDS + 240
    )
    return JOB


def scale(cluster: Cluster, devices: int) -> None:
    """As a user would."""
    run(
        ["kubectl", "scale", f"rljob/{JOB}", f"--replicas={devices}", "-n", cluster.namespace],
        seconds=30,
    )


def generating(cluster: Cluster, devices: int) -> dict:  # type: ignore[type-arg]
    """The job once so many devices generate."""
    return cluster.wait_for_job(
        JOB,
        f"{devices} devices generate",
        lambda job: job["status"].get("rolloutReplicas") == devices,
        seconds=STARTED_SECONDS,
    )


def test_scaling_up_adds_a_pod_whose_devices_generate(cluster: Cluster, job: str) -> None:
    scale(cluster, 3)

    grown = generating(cluster, 3)

    assert grown["status"]["attempt"] == 0
    assert len(cluster.pods(job, "worker")) == 2


def test_scaling_down_drains_first_and_gives_the_pod_back(cluster: Cluster, job: str) -> None:
    scale(cluster, 1)

    generating(cluster, 1)
    cluster.wait(
        "v1",
        "Pod",
        "one worker pod is left",
        lambda pods: (
            sum(p["metadata"]["labels"].get("rljob.io/role") == "worker" for p in pods.values())
            == 1
        ),
        seconds=120,
    )


def test_no_step_is_lost_and_the_attempt_stays_the_same(cluster: Cluster, job: str) -> None:
    done = cluster.wait_for_job(job, "the job has ended", ended, seconds=400)

    assert holds(done, "Succeeded"), cluster.dump(job)
    assert done["status"]["attempt"] == 0
    steps = [event["step"] for event in events_of(cluster, job) if event["kind"] == "step"]
    assert steps == list(range(1, STEPS + 1))
