"""Suspend, resume, delete at any time, too few devices."""

import pytest
from support.cluster import Cluster
from support.jobs import STARTED_SECONDS, condition, holds, small, step, wait_until_it_trains

GONE_SECONDS = 120.0
OWNED = (
    ("v1", "Pod"),
    ("v1", "Secret"),
    ("v1", "ServiceAccount"),
    ("ray.io/v1", "RayCluster"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
)


@pytest.fixture(scope="module")
def cluster(two_jobs: Cluster) -> Cluster:
    return two_jobs


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


def test_a_suspended_job_leaves_a_checkpoint_of_its_last_step_and_no_pods_and_resumes_from_it(
    cluster: Cluster,
) -> None:
    """Its schedule has none."""
    trains = cluster.wait_for_job(
        "first", "it has trained", lambda job: step(job) >= 2, seconds=120
    )
    cluster.patch("first", {"suspend": True})
    suspended = cluster.wait_for_job(
        "first", "the job holds no pods", lambda job: holds(job, "Suspended"), seconds=240
    )
    assert cluster.pods("first") == [] or all(
        "deletionTimestamp" in pod["metadata"] for pod in cluster.pods("first")
    )
    saved = suspended["status"]["lastCheckpoint"]["step"]
    assert saved >= step(trains)

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
        lambda job: all(
            words in condition(job, "ClusterReady").get("message", "")
            for words in ("1 worker pods have no node", "Insufficient huawei.com/Ascend910")
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


@pytest.mark.parametrize("moment", ["starting", "stopping"])
def test_a_job_deleted_at_any_time_leaves_nothing_behind(cluster: Cluster, moment: str) -> None:
    name = {"starting": "greedy", "stopping": "brief"}[moment]
    if moment == "stopping":
        cluster.apply(small(name, steps=5000))
        wait_until_it_trains(cluster, name)
        cluster.patch(name, {"suspend": True})
        cluster.wait_for_job(
            name, "it is stopping", lambda job: job["status"]["phase"] == "Suspending", seconds=60
        )

    cluster.delete_job(name)

    nothing_is_left(cluster, name)


def test_a_job_that_was_deleted_while_it_trained_leaves_nothing_behind(cluster: Cluster) -> None:
    nothing_is_left(cluster, "first")
