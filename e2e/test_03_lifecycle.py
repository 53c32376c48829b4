"""Suspend, resume, delete at any time, two jobs at once, too few devices."""

from typing import Any

import pytest
from support.cluster import Cluster
from support.jobs import STARTED_SECONDS, condition, ended, holds, small, step

GONE_SECONDS = 120.0
SECOND: dict[str, Any] = {"steps": 12, "algorithm": {"name": "rloo", "params": {"clipHigh": 0.28}}}
"""Of the second of two jobs: another algorithm than all other jobs have."""
OWNED = (
    ("v1", "Pod"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("ray.io/v1", "RayCluster"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)


def nothing_is_left(cluster: Cluster, job: str) -> None:
    """Wait until no object of the job exists."""
    for version, kind in OWNED:
        cluster.wait(
            version,
            kind,
            f"no {kind} of {job} is left",
            lambda found: (
                not [
                    o
                    for o in found.values()
                    if o["metadata"].get("labels", {}).get("rljob.io/job") == job
                ]
            ),
            seconds=GONE_SECONDS,
        )


def started(cluster: Cluster, name: str) -> None:
    """Wait until the job trains."""
    cluster.wait_for_job(
        name, f"{name} trains", lambda job: step(job) >= 1, seconds=STARTED_SECONDS + 180
    )


def test_two_jobs_of_a_namespace_train_at_once_each_with_its_own_token_and_pods(
    cluster: Cluster,
) -> None:
    cluster.apply(small("first", steps=2000))
    cluster.apply(small("second", **SECOND))

    for name in ("first", "second"):
        started(cluster, name)
    tokens = {
        secret["data"]["auth_token"]
        for name in ("first", "second")
        for secret in cluster.objects("Secret", selector=f"rljob.io/job={name}")
    }
    done = cluster.wait_for_job("second", "the second has ended", ended, seconds=300)

    assert len(tokens) == 2
    assert holds(done, "Succeeded"), cluster.dump("second")
    assert holds(cluster.job("first"), "Running")


def test_a_suspended_job_leaves_a_checkpoint_and_no_pods_and_resumes_from_it(
    cluster: Cluster,
) -> None:
    cluster.patch("first", {"suspend": True})
    suspended = cluster.wait_for_job(
        "first", "the job holds no pods", lambda job: holds(job, "Suspended"), seconds=240
    )
    assert cluster.pods("first") == [] or all(
        "deletionTimestamp" in pod["metadata"] for pod in cluster.pods("first")
    )
    saved = suspended["status"]["lastCheckpoint"]["step"]
    assert saved >= 1

    cluster.patch("first", {"suspend": False})
    resumed = cluster.wait_for_job(
        "first",
        "it trains beyond its checkpoint",
        lambda job: holds(job, "Running") and step(job) > saved,
        seconds=STARTED_SECONDS + 120,
    )

    assert resumed["status"]["restarts"] == 0
    assert resumed["status"].get("failures") in (None, [])


def test_too_few_devices_are_named_and_the_job_starts_when_there_are_enough(
    cluster: Cluster,
) -> None:
    greedy = small("greedy", nodes=2, steps=3)
    greedy["spec"]["accelerator"]["devicesPerNode"] = 8
    greedy["spec"]["batch"]["globalBatchSize"] = 16

    cluster.apply(greedy)
    waiting = cluster.wait_for_job(
        "greedy",
        "the status says what is missing",
        lambda job: (
            "1 worker pods have no node: 8 huawei.com/Ascend910 are missing"
            in condition(job, "ClusterReady").get("message", "")
        ),
        seconds=120,
    )
    assert waiting["status"]["phase"] == "Starting"

    cluster.delete_job("first")
    cluster.wait_for_job(
        "greedy",
        "its pods are placed",
        lambda job: "have no node" not in condition(job, "ClusterReady").get("message", ""),
        seconds=180,
    )


@pytest.mark.parametrize("moment", ["starting", "running", "stopping"])
def test_a_job_deleted_at_any_time_leaves_nothing_behind(cluster: Cluster, moment: str) -> None:
    name = {"starting": "greedy", "running": "brief", "stopping": "brief"}[moment]
    if moment == "running":
        cluster.apply(small(name, steps=2000))
        started(cluster, name)
    if moment == "stopping":
        cluster.apply(small(name, steps=2000))
        started(cluster, name)
        cluster.patch(name, {"suspend": True})
        cluster.wait_for_job(
            name, "it is stopping", lambda job: job["status"]["phase"] == "Suspending", seconds=60
        )

    cluster.delete_job(name)

    nothing_is_left(cluster, name)


def test_a_job_that_was_deleted_while_it_trained_leaves_nothing_behind(cluster: Cluster) -> None:
    nothing_is_left(cluster, "first")
