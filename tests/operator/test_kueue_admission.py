"""What a job does while Kueue has not admitted it, when it is evicted, and after its end."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import make_job

from rljob_api.spec.status import Condition, LastCheckpoint, RayClusterStatus, RLJobStatus
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, rfc3339
from rljob_operator.decide.model import (
    Cluster,
    DeleteCluster,
    DeleteWorkload,
    FinishWorkload,
    MakeChildren,
    MakeWorkload,
    Observation,
    Pod,
    RayAnswer,
    ReleaseQuota,
    StopSubmission,
    TellPods,
    Workload,
)
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus

NOW = 1_000_000.0
ASKED = Workload(name="job-rljob", message="no quota", requested=1)
ADMITTED = replace(ASKED, admitted=True, reserved=True, cluster_queue="all", workers=1)
EVICTED = replace(ADMITTED, evicted="for a job of more priority", pods_ready=True)
RUNNING = RayJob(status=RayJobStatus.RUNNING)


def seen(workload: Workload | None, *, runs: bool = False, **spec: Any) -> Observation:
    """A job in Kueue's queue. runs: with its pods and its driver, else without any."""
    given = spec.pop("status", {})
    pods = [
        Pod(name=role, uid=role, role=role, ready=True, incarnation=f"{role}/0", node="node")
        for role in ("head", "worker", "warehouse")
    ]
    times = {"start_time": rfc3339(NOW - 90), "attempt_time": rfc3339(NOW - 90)}
    cluster = RayClusterStatus(name="job-0", uid="c", submission_id="s", head="head/0")
    status = RLJobStatus(observed_generation=1, attempt=0, restarts=0, **given)
    if runs:
        status = status.model_copy(update={**times, "ray_cluster": cluster})
    job = make_job(scheduling={"scheduler": "kueue", "queue": "research"}, **spec)
    return Observation(
        identity=JobIdentity(namespace="team", name="job", uid="0123456789", generation=1),
        created=NOW - 100,
        deleting=False,
        spec=job.spec,
        problems=(),
        status=status,
        cluster=Cluster(name="job-0", uid="c", workers=1) if runs else None,
        pods=tuple(pods) if runs else (),
        ray=RayAnswer(reached=runs, job=RUNNING if runs else None),
        queued=True,
        workload=workload,
    )


def told(decision, kind: str = "Admitted") -> tuple[str, str, str]:
    found = condition(decision.status, kind)
    assert found is not None
    return found.status, found.reason, found.message


def test_a_job_asks_kueue_first_and_makes_nothing_else():
    decision = decide(seen(None), NOW)

    assert decision.actions == (MakeWorkload(),)
    assert decision.status.phase == "Queued"
    assert (decision.status.start_time, decision.status.attempt_time) == (None, None)


def test_a_job_that_waits_says_for_what_in_kueues_words_and_no_deadline_of_its_own_passes():
    waits = seen(ASKED, startDeadlineSeconds=1, activeDeadlineSeconds=2)

    decision = decide(waits, NOW + 1e6)

    assert decision.actions == ()
    assert told(decision) == (
        "False", "Queued", "waits for Kueue to admit Workload job-rljob in queue research: no quota",
    )  # fmt: skip


def test_a_workload_that_asks_for_too_little_by_now_is_changed_unless_it_holds_quota():
    outdated = replace(ASKED, outdated=True)

    assert decide(seen(outdated), NOW).actions == (MakeWorkload(),)
    assert decide(seen(replace(outdated, reserved=True)), NOW).actions == ()


def test_an_admitted_job_begins_and_its_time_counts_from_there():
    decision = decide(seen(ADMITTED), NOW)

    assert [type(action) for action in decision.actions] == [MakeChildren, TellPods]
    assert told(decision) == ("True", "Admitted", "by ClusterQueue all")
    assert decision.status.start_time == rfc3339(NOW)


def test_kueue_is_told_once_that_the_pods_are_ready():
    runs = seen(replace(ADMITTED, pods_ready=False), runs=True)

    first = decide(runs, NOW)
    then = decide(replace(runs, workload=replace(ADMITTED, pods_ready=True)), NOW)

    assert first.actions == (TellPods(ready=True),)
    assert then.actions == ()


@pytest.mark.parametrize("workload", [EVICTED, None, replace(ADMITTED, admitted=False)])
def test_a_job_that_may_run_no_more_is_asked_for_a_checkpoint_and_keeps_its_quota_so_long(workload):
    decision = decide(seen(workload, runs=True), NOW)

    assert decision.actions == (StopSubmission(submission="s"),)
    assert decision.status.phase == "Evicting"
    assert told(decision)[:2] == ("False", "Evicted")


def test_an_evicted_job_gives_pods_back_once_its_driver_has_ended_and_quota_once_they_are_gone():
    saved = LastCheckpoint(step=2, path="/c", time=rfc3339(NOW))
    ended = replace(
        seen(EVICTED, runs=True),
        ray=RayAnswer(reached=True, job=RayJob(status=RayJobStatus.STOPPED)),
        checkpoint=saved,
    )

    first = decide(ended, NOW)
    pods_end = replace(seen(EVICTED), status=first.status, older_pods=ended.pods)
    second = decide(pods_end, NOW)
    third = decide(replace(pods_end, older_pods=()), NOW)

    assert first.actions == (DeleteCluster(cluster="job-0"),)
    assert (first.status.attempt, first.status.restarts, first.status.failures) == (1, 0, [])
    assert first.status.last_checkpoint == saved
    assert second.actions == ()
    assert third.actions == (ReleaseQuota(),)
    assert third.status.phase == "Queued"


def test_a_driver_that_leaves_no_checkpoint_in_time_is_ended_with_its_pods():
    late = Condition(
        type="Stopping", status="True", reason="Evicted", last_transition_time=rfc3339(NOW - 601)
    )

    decision = decide(seen(EVICTED, runs=True, status={"conditions": [late]}), NOW)

    assert decision.actions == (DeleteCluster(cluster="job-0"),)


def test_a_job_that_is_evicted_before_it_began_gives_its_quota_back_at_once():
    assert decide(seen(EVICTED), NOW).actions == (ReleaseQuota(),)


def test_a_workload_that_counts_as_finished_though_the_job_is_not_makes_place_for_another():
    assert decide(seen(replace(ASKED, finished=True)), NOW).actions == (DeleteWorkload(),)


def test_a_suspended_job_has_no_workload():
    assert decide(seen(ASKED, suspend=True), NOW).actions == (DeleteWorkload(),)
    assert decide(seen(None, suspend=True), NOW).actions == ()


@pytest.mark.parametrize(("kind", "succeeded"), [("Succeeded", True), ("Failed", False)])
def test_a_job_that_has_ended_gives_its_quota_back_once_its_devices_are_free(kind, succeeded):
    end = Condition(type=kind, status="True", reason="Ended", last_transition_time=rfc3339(NOW))
    ended = replace(
        seen(ADMITTED, runs=True, status={"conditions": [end]}), ray=RayAnswer(reached=True)
    )

    busy = decide(ended, NOW)
    free = decide(replace(ended, pods=ended.pods[:1]), NOW)
    done = decide(replace(ended, pods=(), workload=replace(ADMITTED, finished=True)), NOW)

    assert not [action for action in busy.actions if isinstance(action, FinishWorkload)]
    (told,) = [action for action in free.actions if isinstance(action, FinishWorkload)]
    assert told.succeeded == succeeded
    assert done.actions == ()


@pytest.mark.parametrize(("pods", "told"), [(4, None), (3, TellPods(ready=True, workers=3))])
def test_a_job_that_shrinks_gives_quota_back_once_the_pod_is_gone(pods, told):
    workers = tuple(
        Pod(name=f"w-{n}", uid=f"w-{n}", role="worker", ready=True, node="node")
        for n in range(pods)
    )
    base = seen(
        replace(ADMITTED, pods_ready=True, workers=4, requested=3),
        runs=True,
        accelerator={"devicesPerNode": 1, "nodes": None},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 2},
    )
    runs = replace(
        base,
        cluster=Cluster(name="job-0", uid="c", workers=3),
        pods=tuple(pod for pod in base.pods if pod.role != "worker") + workers,
    )

    decision = decide(runs, NOW)

    assert decision.actions == ((told,) if told else ())
