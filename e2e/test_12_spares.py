"""A job's devices move to a node that waits: when theirs is lost, and when a chip of it warns."""

import logging
from collections.abc import Iterator

import pytest
from support.chips import chips_of, set_broken
from support.cluster import Cluster, Manifest
from support.jobs import (
    STARTED_SECONDS,
    actors_of,
    condition,
    events_of,
    head_at,
    home_of,
    small,
    step,
    wait_until_it_trains,
)
from support.tools import Tools, run, without

pytestmark = [pytest.mark.nightly]

STEPS = 5000
MOVED_SECONDS = 120
"""Far more than it takes where a spare waits."""
REPLACED_SECONDS = STARTED_SECONDS + 60
logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def home(release: Cluster, reading: None) -> str:
    return home_of(release)


def one_device(name: str, home: str, **accelerator: int) -> Manifest:
    """A job of one device, whose head is at home."""
    job = small(name, steps=STEPS, podTemplates=head_at(home))
    job["spec"]["accelerator"] |= accelerator
    return job


@pytest.fixture(scope="module")
def spared(cluster: Cluster, home: str) -> Iterator[str]:
    """A job with a spare node, once it trains and the spare waits."""
    cluster.apply(one_device("spared", home, spareNodes=1))
    wait_until_it_trains(cluster, "spared")
    spare_waits(cluster)
    yield "spared"
    cluster.delete_job("spared")
    cluster.wait("v1", "Pod", "its pods are gone", lambda _: not cluster.pods("spared"), seconds=90)


def spare_waits(cluster: Cluster) -> Manifest:
    return cluster.wait_for_job(
        "spared",
        "a spare node waits",
        lambda job: job["status"].get("spareNodes") == "1/1",
        seconds=REPLACED_SECONDS,
    )


def place_of(cluster: Cluster, job: str) -> tuple[str, str]:
    """The pod with the job's device, and its node."""
    (pod,) = actors_of(cluster, job)["DeviceWorker"]
    (node,) = [
        p["spec"]["nodeName"] for p in cluster.pods(job, "worker") if p["metadata"]["name"] == pod
    ]
    return pod, node


def trains_elsewhere(cluster: Cluster, before: Manifest, *, seconds: float) -> Manifest:
    """The job once it has trained beyond what it had; logs how long no step ended."""
    name = before["metadata"]["name"]
    moved = len(recoveries(cluster, name))
    after = cluster.wait_for_job(
        name,
        f"it trains beyond step {step(before)} after a recovery",
        lambda job: (
            step(job) > step(before) + 5
            and len(told := recoveries(cluster, name)) > moved
            and step(job) > told[-1]["step"] + 5
        ),
        seconds=seconds,
    )
    assert after["status"]["attempt"] == before["status"]["attempt"]
    told = [event for event in events_of(cluster, name) if event["kind"] in ("step", "recovery")]
    place = max(n for n, event in enumerate(told) if event["kind"] == "recovery")
    gap = told[place + 1]["time"] - told[place - 1]["time"]
    logger.info("%s: %.1f s from the last step to the next", name, gap)
    return after


def recoveries(cluster: Cluster, job: str) -> list[dict]:  # type: ignore[type-arg]
    return [event for event in events_of(cluster, job) if event["kind"] == "recovery"]


def test_a_spare_is_a_pod_more_and_is_told(cluster: Cluster, spared: str) -> None:
    job = cluster.job(spared)

    assert (job["status"]["devices"], job["status"]["spareNodes"]) == ("1/1", "1/1")
    assert condition(job, "ClusterReady")["message"] == "1/1 spare nodes wait"
    assert len({pod["spec"]["nodeName"] for pod in cluster.pods(spared, "worker")}) == 2
    assert len(cluster.pods(spared, "warehouse")) == 2


def test_a_chip_that_warns_is_left_for_the_spare(cluster: Cluster, spared: str, home: str) -> None:
    pod, node = place_of(cluster, spared)
    before = cluster.job(spared)
    chip = min(chips_of(cluster, pod))
    set_broken(cluster, node, f"{chip}:SubHealthFault")
    try:
        trains_elsewhere(cluster, before, seconds=MOVED_SECONDS)
        moved = place_of(cluster, spared)
        there = chips_of(cluster, moved[0])
    finally:
        set_broken(cluster, node, "")

    # a pod in the place of the one that left may be there before the device moves
    assert moved[0] != pod
    assert moved[1] != node or chip not in there
    told = recoveries(cluster, spared)[-1]
    assert told["hosts"] == [pod]
    assert told["step"] > step(before)  # after a checkpoint
    spare_waits(cluster)


def test_the_devices_of_a_lost_node_move_to_the_spare(
    cluster: Cluster, spared: str, home: str, tools: Tools
) -> None:
    pod, node = place_of(cluster, spared)
    if node == home:  # the spare is where it is to be
        cluster.kill_pod(pod)
        trains_elsewhere(cluster, cluster.job(spared), seconds=MOVED_SECONDS)
        spare_waits(cluster)
        pod, node = place_of(cluster, spared)
    before = cluster.job(spared)

    with without(tools, node):
        trains_elsewhere(cluster, before, seconds=MOVED_SECONDS)
        assert place_of(cluster, spared)[1] == home
        lacking = cluster.wait_for_job(
            spared,
            "its spare is missed",
            lambda job: job["status"]["spareNodes"] == "0/1",
            seconds=REPLACED_SECONDS,
        )

    assert lacking["status"]["devices"] == "1/1"
    assert recoveries(cluster, spared)[-1]["hosts"] == [pod]
    again = spare_waits(cluster)
    assert again["status"]["attempt"] == before["status"]["attempt"]


def test_without_a_spare_the_pod_of_a_lost_node_is_made_on_another_within_the_attempt(
    cluster: Cluster, spared: str, home: str, tools: Tools
) -> None:
    cluster.apply(one_device("alone", home))
    wait_until_it_trains(cluster, "alone")
    if place_of(cluster, "alone")[1] == home:
        run(["kubectl", "cordon", home], seconds=30)
        try:
            before = cluster.job("alone")
            for there in cluster.pods("alone", "worker") + cluster.pods("alone", "warehouse"):
                cluster.kill_pod(there["metadata"]["name"])
            trains_elsewhere(cluster, before, seconds=REPLACED_SECONDS)
        finally:
            run(["kubectl", "uncordon", home], seconds=30)
    pod, node = place_of(cluster, "alone")
    assert node != home
    before = cluster.job("alone")

    with without(tools, node):
        trains_elsewhere(cluster, before, seconds=REPLACED_SECONDS)
        assert place_of(cluster, "alone")[1] == home

    assert recoveries(cluster, "alone")[-1]["hosts"] == [pod]
