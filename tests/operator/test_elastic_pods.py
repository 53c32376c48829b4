"""Rollout devices come and go while a job trains: pods before devices, devices before pods."""

from dataclasses import replace

from cluster_jobs import make_job

from rljob_api.spec.status import RayClusterStatus, RLJobStatus
from rljob_api.topology.elastic import RolloutReport
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, rfc3339
from rljob_operator.decide.model import (
    Cluster,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
    ScaleRollout,
)
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus

NOW = 1_000_000.0


def running_elastic(
    *, rollout: int, pods: int, rollout_report: RolloutReport | None
) -> Observation:
    """A job with one device that trains, two devices a pod, and so many worker pods now."""
    job = make_job(
        accelerator={"devicesPerNode": 2, "nodes": None},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": rollout},
        batch={"globalBatchSize": 12},
    )
    names = ["head", "warehouse", *[f"w-{number}" for number in range(pods)]]
    made = [
        Pod(
            name=name,
            uid=name,
            role=name if name in ("head", "warehouse") else "worker",  # type: ignore[arg-type]
            ready=True,
            incarnation=f"{name}/0",
            node="node",
        )
        for name in names
    ]
    status = RLJobStatus(
        observed_generation=1,
        start_time=rfc3339(NOW - 10),
        attempt_time=rfc3339(NOW - 10),
        attempt=0,
        restarts=0,
        ray_cluster=RayClusterStatus(name="job-0", uid="c", submission_id="s", head="head/0"),
    )
    return Observation(
        identity=JobIdentity(namespace="team", name="job", uid="0123456789", generation=1),
        created=NOW - 20,
        deleting=False,
        spec=job.spec,
        problems=(),
        status=status,
        cluster=Cluster(name="job-0", uid="c", workers=pods),
        pods=tuple(made),
        ray=RayAnswer(reached=True, job=RayJob(status=RayJobStatus.RUNNING)),
        rollout=rollout_report,
    )


def report(*, wanted: int, ready: int, hosts: tuple[str, ...]) -> RolloutReport:
    return RolloutReport(wanted=wanted, ready=ready, hosts=list(hosts))


def test_growing_asks_for_pods_and_tells_the_driver() -> None:
    seen = running_elastic(
        rollout=3, pods=1, rollout_report=report(wanted=1, ready=1, hosts=("w-0",))
    )

    decision = decide(seen, NOW)

    assert MakeChildren(cluster="job-0", workers=2) in decision.actions
    assert ScaleRollout(rollout=3) in decision.actions
    assert condition(decision.status, "Resizing").status == "True"
    assert decision.status.rollout_replicas == 1


def test_shrinking_keeps_every_pod_until_the_driver_has_drained() -> None:
    seen = running_elastic(
        rollout=1, pods=2, rollout_report=report(wanted=3, ready=3, hosts=("w-0", "w-1"))
    )

    decision = decide(replace(seen, identity=replace(seen.identity, generation=2)), NOW)

    assert ScaleRollout(rollout=1) in decision.actions
    made = [action for action in decision.actions if isinstance(action, MakeChildren)]
    assert [action.workers for action in made] == [2]  # the changed spec is applied, no pod goes
    assert not made[0].leaving


def test_a_drained_pod_is_given_back_by_name() -> None:
    seen = running_elastic(
        rollout=1, pods=2, rollout_report=report(wanted=1, ready=1, hosts=("w-0",))
    )

    decision = decide(seen, NOW)

    assert decision.actions == (MakeChildren(cluster="job-0", workers=1, leaving=("w-1",)),)


def test_nothing_happens_while_all_is_as_it_should_be() -> None:
    seen = running_elastic(
        rollout=1, pods=1, rollout_report=report(wanted=1, ready=1, hosts=("w-0",))
    )

    decision = decide(seen, NOW)

    assert decision.actions == ()
    assert condition(decision.status, "Resizing").status == "False"


def test_without_a_word_of_the_driver_no_pod_goes() -> None:
    seen = running_elastic(rollout=1, pods=2, rollout_report=None)

    assert decide(seen, NOW).actions == ()
