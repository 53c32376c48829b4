"""One job through every failure: operator, warehouse, worker, driver, head and node are killed in turn.

Megatron Core trains it on two tensor ranks times two data ranks, and its weights go to four that generate.

The tests are one story, in order: each kills something of the same running job and waits until it trains
again; the last one looks at the whole run.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta

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
from support.tools import Tools, without

JOB = "survivor"
STEPS = 300
DEVICES = 2
MEGATRON = {"engine": "megatron", "parallelism": {"tensor": 2, "data": 2, "zero": 1}}
ROWS_OF_A_STEP = 8 * 4
KILL_DRIVER = """
import glob, json, os
(file,) = glob.glob("/var/lib/rljob/*/survivor-*/driver.json")
os.kill(json.load(open(file))["pid"], 9)
print("killed")
"""
DEVICES_OF_A_POD = """for p in /proc/[0-9]*; do
grep -qsa 'DeviceWorke[r]' $p/cmdline && echo ${p#/proc/}; done; true"""
"""The brackets keep the pattern from finding this script itself."""
AGAIN_SECONDS = STARTED_SECONDS + 120


@pytest.fixture(scope="module")
def job(cluster: Cluster) -> str:
    """The job once it has a checkpoint."""
    manifest = small(JOB, steps=STEPS, nodes=2, backoffLimit=5, update=MEGATRON)
    manifest["spec"]["accelerator"]["devicesPerNode"] = DEVICES
    cluster.apply(manifest)
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


def stands_still(job: Manifest) -> bool:
    """No step was finished for a minute: devices that are gone are waited for."""
    told = datetime.fromisoformat(job["status"]["progressTime"])
    return datetime.now(UTC) - told > timedelta(minutes=1)


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


def test_a_killed_worker_is_replaced_within_the_attempt_and_without_a_broken_chip(
    cluster: Cluster, job: str
) -> None:
    before = cluster.job(job)
    worker = cluster.pods(job, "worker")[0]
    name, node = worker["metadata"]["name"], worker["spec"]["nodeName"]
    broken = chips_of(cluster, name)

    set_broken(cluster, node, " ".join(broken))
    wait_for_chips(cluster, node, 8 - DEVICES)
    try:
        cluster.kill_pod(name)
        after = cluster.wait_for_job(
            JOB,
            "steps go on",
            lambda j: step(j) > step(before) + 5 and recoveries(cluster) != [],
            seconds=AGAIN_SECONDS,
        )
    finally:
        set_broken(cluster, node, "")

    assert attempt(after) == attempt(before)
    assert failures(after) == []
    recovered = [event for event in recoveries(cluster) if event["devices"]]
    assert len({device for event in recovered for device in event["devices"]}) == DEVICES
    for event in recovered:
        assert event["source"] == "checkpoint"  # ZeRO 1: nobody holds the same state
        assert event["step"] >= before["status"]["lastCheckpoint"]["step"]
    (present,) = [p for p in cluster.pods(job, "worker") if p["spec"]["nodeName"] == node]
    assert not chips_of(cluster, present["metadata"]["name"]) & broken


def test_killing_the_driver_keeps_the_attempt_and_the_workers_processes(
    cluster: Cluster, job: str
) -> None:
    before, workers = cluster.job(job), worker_processes(cluster)

    killed = cluster.run(cluster.head(job), "python", "-c", KILL_DRIVER)
    after = cluster.wait_for_job(
        job,
        "steps go on after another driver took over",
        lambda j: step(j) > step(before) + 5 and driver_deaths(cluster) == 1,
        seconds=AGAIN_SECONDS,
    )

    assert "killed" in killed
    assert attempt(after) == attempt(before)
    assert failures(after) == failures(before)
    assert after["status"].get("restarts") == before["status"].get("restarts")
    assert after["status"]["rayCluster"] == before["status"]["rayCluster"]
    assert worker_processes(cluster) == workers


def test_killing_the_head_starts_an_attempt_on_a_new_cluster(cluster: Cluster, job: str) -> None:
    before = cluster.job(job)

    cluster.kill_pod(cluster.head(job))
    after = trains_on(cluster, before)

    assert failures(after)[-1] == "HeadLost"
    assert after["status"]["rayCluster"]["name"] != before["status"]["rayCluster"]["name"]


def test_the_job_goes_on_after_a_lost_node_once_there_are_nodes_again(
    cluster: Cluster, release: Cluster, job: str, tools: Tools
) -> None:
    before = cluster.job(job)
    (operator,) = release.objects("Pod", selector="app.kubernetes.io/component=operator")
    (node,) = {p["spec"]["nodeName"] for p in cluster.pods(job, "worker")} - {
        operator["spec"]["nodeName"]
    }

    with without(tools, node):
        cluster.wait_for_job(
            job,
            "the loss is noticed",
            lambda j: attempt(j) > attempt(before) or stands_still(j),
            seconds=240,
        )
    after = cluster.wait_for_job(
        job,
        f"it trains beyond step {step(before)}",
        lambda j: holds(j, "Running") and step(j) > step(before) + 5,
        seconds=AGAIN_SECONDS,
    )

    if attempt(after) > attempt(before):
        assert failures(after)[-1] in ("NodeLost", "HeadLost", "DriverFailed", "WorkerKilled")
    else:
        assert any(event["devices"] for event in recoveries(cluster))


def test_the_job_succeeds_and_every_sample_counts_once(cluster: Cluster, job: str) -> None:
    done = cluster.wait_for_job(job, "the job has ended", ended, seconds=600)

    assert holds(done, "Succeeded"), cluster.dump(job)
    assert step(done) == STEPS
    events = events_of(cluster, job)
    trained = lineage(events)
    assert sorted(trained) == list(range(1, STEPS + 1))
    assert set(trained.values()) == {ROWS_OF_A_STEP}
    reshards = [event for event in events if event["kind"] == "reshard"]
    assert len(reshards) > STEPS
    assert [event for event in reshards if event["kept_bytes"]] == []
    assert all(event["released_bytes"] > 0 for event in reshards)


def driver_deaths(cluster: Cluster) -> int:
    return sum("driver" in event["others"] for event in recoveries(cluster))


def worker_processes(cluster: Cluster) -> dict[str, list[str]]:
    """Pids of the devices' processes in each worker pod."""
    return {
        pod["metadata"]["name"]: sorted(
            cluster.run(pod["metadata"]["name"], "sh", "-c", DEVICES_OF_A_POD).split()
        )
        for pod in cluster.pods(JOB, "worker")
    }


def recoveries(cluster: Cluster) -> list[dict]:  # type: ignore[type-arg]
    return [event for event in events_of(cluster, JOB) if event["kind"] == "recovery"]


def lineage(events: list[dict]) -> Counter[int]:  # type: ignore[type-arg]
    """Rows that the final weights were trained on, by step: what an attempt did after the checkpoint that the
    next one started from is not among them."""
    rows: Counter[int] = Counter()
    for event in events:
        if event["kind"] == "run_started" or event.get("rolled_back_to") is not None:
            start = event.get("resumed_from") or event.get("rolled_back_to") or 0
            rows = Counter({step: count for step, count in rows.items() if step <= start})
        elif event["kind"] == "step":
            rows[event["step"]] += sum(event["staleness"].values())
    return rows
