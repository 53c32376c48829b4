"""One job through every failure: operator, warehouse, worker, head and node are killed in turn.

The tests are one story, in order: each kills something of the same running job and waits until it trains
again; the last one looks at the whole run.
"""

from collections import Counter

import pytest
from support.chips import chips_of, set_broken, wait_for_chips
from support.cluster import Cluster, Manifest
from support.jobs import (
    STARTED_SECONDS,
    actors_of,
    ended,
    events_of,
    holds,
    small,
    step,
    wait_for_another_warehouse,
)
from support.tools import Tools, run

JOB = "survivor"
STEPS = 420
ROWS_OF_A_STEP = 8 * 4
AGAIN_SECONDS = STARTED_SECONDS + 120


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> str:
    """The job once it has a checkpoint."""
    cluster.apply(small(JOB, steps=STEPS, nodes=2, backoffLimit=5))
    cluster.wait_for_job(
        JOB,
        "a checkpoint is there",
        lambda job: (job["status"].get("lastCheckpoint") or {}).get("step", 0) >= 5,
        seconds=STARTED_SECONDS + 240,
    )
    return JOB


def attempt(job: Manifest) -> int:
    return int(job["status"]["attempt"])


def failures(job: Manifest) -> list[str]:
    return [failure["reason"] for failure in job["status"].get("failures") or []]


def trains_on(cluster: Cluster, before: Manifest) -> Manifest:
    """The job once a later attempt has told of steps of its own."""
    return cluster.wait_for_job(
        JOB,
        f"an attempt after {attempt(before)} trains beyond step {step(before)}",
        lambda job: (
            attempt(job) > attempt(before)
            and holds(job, "Running")
            and job["status"]["progressTime"] > job["status"]["attemptTime"]
            and step(job) > step(before)
        ),
        seconds=AGAIN_SECONDS,
    )


def test_killing_the_operator_changes_nothing_for_the_job(
    cluster: Cluster, release: Cluster, job: str
) -> None:
    before = cluster.job(job)

    for pod in release.objects("Pod", selector="app.kubernetes.io/component=operator"):
        release.kill_pod(pod["metadata"]["name"])
    after = cluster.wait_for_job(
        job, "the new operator tells of progress", lambda j: step(j) > step(before) + 2, seconds=180
    )

    assert attempt(after) == 0
    assert after["status"]["rayCluster"] == before["status"]["rayCluster"]


def test_killing_a_warehouse_keeps_the_attempt(cluster: Cluster, job: str) -> None:
    before = cluster.job(job)

    lost = cluster.pods(job, "warehouse")[0]["metadata"]["name"]
    cluster.kill_pod(lost)
    wait_for_another_warehouse(cluster, lost, seconds=AGAIN_SECONDS)
    ready = cluster.job(job)
    after = cluster.wait_for_job(
        job, "steps go on", lambda j: step(j) > step(ready) + 5, seconds=AGAIN_SECONDS
    )

    assert attempt(after) == attempt(before) == 0
    assert failures(after) == []
    where = actors_of(cluster, job)["WarehouseActor"]
    assert lost not in where
    assert len(set(where)) == 2


def test_killing_a_worker_starts_an_attempt_from_the_last_checkpoint_without_a_broken_chip(
    cluster: Cluster, job: str
) -> None:
    before = cluster.job(job)
    worker = cluster.pods(job, "worker")[0]
    name, node = worker["metadata"]["name"], worker["spec"]["nodeName"]
    broken = chips_of(cluster, name)

    set_broken(cluster, node, " ".join(broken))
    wait_for_chips(cluster, node, 7)
    try:
        cluster.kill_pod(name)
        after = trains_on(cluster, before)
    finally:
        set_broken(cluster, node, "")

    assert attempt(after) == attempt(before) + 1
    resumed = [e for e in events_of(cluster, job) if e["kind"] == "run_started"][-1]
    assert resumed["resumed_from"] >= before["status"]["lastCheckpoint"]["step"]
    (present,) = [p for p in cluster.pods(job, "worker") if p["spec"]["nodeName"] == node]
    assert not chips_of(cluster, present["metadata"]["name"]) & broken


def test_killing_the_head_starts_an_attempt_on_a_new_cluster(cluster: Cluster, job: str) -> None:
    before = cluster.job(job)

    cluster.kill_pod(cluster.head(job))
    after = trains_on(cluster, before)

    assert failures(after)[-1] == "HeadLost"
    assert after["status"]["rayCluster"]["name"] != before["status"]["rayCluster"]["name"]


def test_a_lost_node_starts_an_attempt_once_there_are_nodes_again(
    cluster: Cluster, release: Cluster, job: str, tools: Tools
) -> None:
    if not tools.kill_node:
        pytest.skip("RLJOB_E2E_KILL_NODE says how this cluster loses a node; it is not set")
    before = cluster.job(job)
    (operator,) = release.objects("Pod", selector="app.kubernetes.io/component=operator")
    (node,) = {p["spec"]["nodeName"] for p in cluster.pods(job, "worker")} - {
        operator["spec"]["nodeName"]
    }

    run(f"{tools.kill_node} {node}", seconds=120)
    try:
        cluster.wait_for_job(
            job,
            "the loss is noticed",
            lambda j: attempt(j) > attempt(before),
            seconds=240,
        )
    finally:
        run(f"{tools.start_node} {node}", seconds=120)
    after = trains_on(cluster, before)

    assert failures(after)[-1] in ("NodeLost", "HeadLost", "DriverFailed", "WorkerKilled")


def test_the_job_succeeds_and_every_sample_counts_once(cluster: Cluster, job: str) -> None:
    done = cluster.wait_for_job(job, "the job has ended", ended, seconds=600)

    assert holds(done, "Succeeded"), cluster.dump(job)
    assert step(done) == STEPS
    trained = lineage(events_of(cluster, job))
    assert sorted(trained) == list(range(1, STEPS + 1))
    assert set(trained.values()) == {ROWS_OF_A_STEP}


def lineage(events: list[dict]) -> Counter[int]:  # type: ignore[type-arg]
    """Rows that the final weights were trained on, by step: what an attempt did after the checkpoint that the
    next one started from is not among them."""
    rows: Counter[int] = Counter()
    for event in events:
        if event["kind"] == "run_started":
            start = event.get("resumed_from") or 0
            rows = Counter({step: count for step, count in rows.items() if step <= start})
        elif event["kind"] == "step":
            rows[event["step"]] += sum(event["staleness"].values())
    return rows
