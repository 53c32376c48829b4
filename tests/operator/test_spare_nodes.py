"""Spare nodes are pods that a job has and does not wait for; pods of lost nodes make room for others."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import SETTINGS, TOKEN, identity, make_job

from rljob_api.spec.status import RayClusterStatus, RLJobStatus
from rljob_api.topology.elastic import RolloutReport
from rljob_operator.build import children
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.attempt import LOST_SECONDS
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, rfc3339
from rljob_operator.decide.model import (
    Cluster,
    DeletePod,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
    Role,
    Submit,
)
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus
from rljob_operator.watch.fault_reports import ChipFault

NOW = 1_000_000.0
ELASTIC = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}


def pod(name: str, role: Role, *, ready: bool = True, deleting: float | None = None) -> Pod:
    return Pod(
        name=name,
        uid=name,
        role=role,
        ready=ready,
        incarnation=f"{name}/0",
        node=f"node-of-{name}",
        deleting_since=deleting,
    )


def seen(*workers: Pod, submitted: bool = True, spares: int = 1, **spec: Any) -> Observation:
    """A job of two nodes, unless the spec says other, and of so many spare ones."""
    accelerator = {"nodes": 2, "spareNodes": spares} | spec.pop("accelerator", {})
    given = {"submission_id": "s", "head": "head/0"} if submitted else {}
    status = RLJobStatus(
        observed_generation=1,
        start_time=rfc3339(NOW - 90),
        attempt_time=rfc3339(NOW - 90),
        attempt=0,
        restarts=0,
        ray_cluster=RayClusterStatus(name="job-0", uid="c", **given),
    )
    warehouses = [pod(f"s-{number}", "warehouse") for number in range(2)]
    return Observation(
        identity=JobIdentity(namespace="team", name="job", uid="0123456789", generation=1),
        created=NOW - 100,
        deleting=False,
        spec=make_job(accelerator=accelerator, **spec).spec,
        problems=(),
        status=status,
        cluster=Cluster(name="job-0", uid="c", workers=2 + spares),
        pods=(pod("head", "head"), *warehouses, *workers),
        ray=RayAnswer(reached=True, job=RayJob(status=RayJobStatus.RUNNING)),
    )


def workers(number: int, **last: Any) -> list[Pod]:
    """Worker pods, of which the last one is as told."""
    made = [pod(f"w-{index}", "worker") for index in range(number)]
    return [*made[:-1], replace(made[-1], **last)]


def test_a_cluster_has_a_worker_and_a_warehouse_more_for_each_spare_node() -> None:
    job = make_job(accelerator={"nodes": 2, "spareNodes": 3})

    *_, cluster = children(job, identity(), SETTINGS, TOKEN, cluster="job-0")

    groups = {g["groupName"]: g["replicas"] for g in cluster["spec"]["workerGroupSpecs"]}
    assert groups == {"worker": 5, "warehouse": 5}


def test_only_pods_of_jobs_with_spares_keep_warm_processes() -> None:
    for spares, told in ((0, {}), (1, {"RAY_num_workers_soft_limit": "8"})):
        job = make_job(accelerator={"nodes": 1, "devicesPerNode": 2, "spareNodes": spares})

        *_, cluster = children(job, identity(), SETTINGS, TOKEN, cluster="job-0")

        worker, warehouse = cluster["spec"]["workerGroupSpecs"]
        variables = {
            group["groupName"]: {
                each["name"]: each["value"]
                for each in group["template"]["spec"]["containers"][0]["env"]
                if each["name"] == "RAY_num_workers_soft_limit"
            }
            for group in (worker, warehouse)
        }
        assert variables == {"worker": told, "warehouse": {}}
        assert worker["resources"].get("CPU") == told.get("RAY_num_workers_soft_limit")


def test_a_job_begins_once_its_own_nodes_are_there_and_tells_which_spares_lack() -> None:
    decision = decide(seen(*workers(3, ready=False), submitted=False), NOW)

    assert any(isinstance(action, Submit) for action in decision.actions)
    assert (decision.status.devices, decision.status.spare_nodes) == ("4/4", "0/1")
    assert condition(decision.status, "ClusterReady").message == "0/1 spare nodes wait"


def test_a_job_without_spares_says_nothing_of_them() -> None:
    decision = decide(seen(*workers(2), spares=0), NOW)

    assert decision.status.spare_nodes is None
    assert condition(decision.status, "ClusterReady").message == ""


def test_a_pod_of_a_lost_node_is_removed_and_the_attempt_goes_on() -> None:
    lost = seen(*workers(3, ready=False, deleting_since=NOW))

    early, late = decide(lost, NOW + LOST_SECONDS - 1), decide(lost, NOW + LOST_SECONDS)

    assert not any(isinstance(action, DeletePod) for action in early.actions)
    assert early.requeue_seconds == 1.0
    assert late.actions == (DeletePod(pod="w-2", force=True),)
    (event,) = [event for event in late.events if event.reason == "NodeLost"]
    assert (
        event.message == "pod w-2 is replaced: its node node-of-w-2 does not say that it has ended"
    )
    assert (late.status.attempt, late.status.devices) == (0, "4/4")


def test_a_driver_that_ends_after_its_node_was_drained_does_not_count() -> None:
    failed = RayAnswer(reached=True, job=RayJob(status=RayJobStatus.FAILED))
    lost = seen(*workers(2, ready=False, deleting_since=NOW, disrupted=True), spares=0)

    status = decide(replace(lost, ray=failed), NOW + 1).status

    assert (status.attempt, status.restarts) == (1, 0)


def test_chips_are_healthy_again_once_the_job_has_its_own_nodes() -> None:
    healthy = seen(*workers(3))
    fault = ChipFault(node="node-of-w-2", chip="Ascend910-3", level="SeparateNPU", since=NOW)
    hit = decide(replace(healthy, faults=(fault,), faulty_nodes=("node-of-w-2",)), NOW).status
    assert condition(hit, "AcceleratorHealthy").status == "False"

    moved = seen(*workers(2))
    after = decide(replace(moved, status=hit, faults=(fault,)), NOW + 5).status

    assert condition(after, "AcceleratorHealthy").status == "True"


@pytest.mark.parametrize(
    ("rollout", "hosts", "pods", "told"),
    [
        (2, ["w-0"], 2, MakeChildren(cluster="job-0", workers=3)),  # beside the spare
        (1, ["w-0"], 3, MakeChildren(cluster="job-0", workers=2, leaving=("w-2",))),
        (1, ["w-0"], 2, None),
    ],
    ids=["grows", "shrinks", "rests"],
)
def test_the_pods_of_an_elastic_job_are_those_of_its_devices_and_its_spares(
    rollout: int, hosts: list[str], pods: int, told: MakeChildren | None
) -> None:
    elastic = seen(
        *workers(pods, ready=pods < 3),
        accelerator={"devicesPerNode": 2, "nodes": None},
        placement=ELASTIC | {"rolloutDevices": rollout * 2 - 1},
        batch={"globalBatchSize": 12},
    )
    report = RolloutReport(wanted=rollout * 2 - 1, ready=rollout * 2 - 1, hosts=hosts)

    decision = decide(
        replace(elastic, cluster=Cluster(name="job-0", uid="c", workers=pods), rollout=report), NOW
    )

    made = [action for action in decision.actions if isinstance(action, MakeChildren)]
    assert made == ([told] if told else [])
