"""Decide the next actions for an RLJob from what was observed. Called by `reconcile`. Does no I/O.

What identifies an action (the cluster's name, the submission's id) is written to the status before the action
is taken, so a repeated action finds the result of its first try.
"""

from rljob_api.spec.status import RayClusterStatus
from rljob_operator.build.names import cluster_name
from rljob_operator.decide.admission import finish, is_admitted, report_to_kueue
from rljob_operator.decide.attempt import POLL_SECONDS, deadline_message, fail, start, supervise
from rljob_operator.decide.draft import Draft, holds, rfc3339
from rljob_operator.decide.model import (
    Decision,
    DeleteCluster,
    DeleteJob,
    DeleteWorkload,
    Observation,
    ReleaseWorkers,
)
from rljob_operator.decide.stopping import release_pods, stop
from rljob_operator.decide.turns import leave_line


def decide(observed: Observation, unix_time: float) -> Decision:
    """Return the desired status and what to do. unix_time: seconds."""
    if observed.deleting:  # its children are owned by it, and go with it
        return Decision(status=observed.status)
    draft = Draft(observed, unix_time)
    draft.do(*[DeleteCluster(cluster=c.name) for c in observed.older if not c.deleting])
    if holds(observed.status, "Succeeded") or holds(observed.status, "Failed"):
        _clean_up(draft)
    elif observed.spec is None:
        _refuse(draft)
    elif observed.spec.suspend:
        _suspend(draft)
    else:
        _run(draft)
    return draft.decision()


def _refuse(draft: Draft) -> None:
    problems = "; ".join(str(problem) for problem in draft.observed.problems)
    draft.set("Validated", "False", "InvalidSpec", problems)
    draft.update(phase="Invalid")


def _run(draft: Draft) -> None:
    observed, spec = draft.observed, draft.observed.spec
    assert spec is not None, "a job without a valid spec is refused, not run"
    draft.set("Validated", "True", "Valid", emit=False)
    if holds(observed.status, "Suspended"):
        draft.set("Suspended", "False", "Resumed", "goes on from the last checkpoint")
    if observed.queued and not is_admitted(draft):
        return
    draft.set("Stopping", "False", "NotStopping", emit=False)
    if draft.status.start_time is None:
        draft.update(start_time=rfc3339(draft.unix_time), attempt_time=rfc3339(draft.unix_time))
        draft.update(attempt=draft.status.attempt or 0, restarts=draft.status.restarts or 0)
    limit = spec.active_deadline_seconds
    left = draft.left(draft.status.start_time, limit)
    if left is not None and left <= 0:
        name = "activeDeadlineSeconds"
        message = deadline_message(draft, name, f"did not end within {name}, {limit}")
        if message is not None:
            fail(draft, "DeadlineExceeded", message)
        return
    draft.requeue_after([left])
    _keep_cluster(draft)
    cluster = draft.status.ray_cluster
    if cluster is not None and cluster.submission_id is not None:
        supervise(draft)
    else:
        start(draft)
    if observed.queued:
        report_to_kueue(draft)


def _keep_cluster(draft: Draft) -> None:
    """Name the cluster, create it, and apply its children again if the spec has changed."""
    observed = draft.observed
    attempt = draft.status.attempt or 0
    if draft.status.ray_cluster is None:
        name = cluster_name(observed.identity.name, attempt)
        draft.update(ray_cluster=RayClusterStatus(name=name))
    changed = observed.status.observed_generation != observed.identity.generation
    cluster = draft.status.ray_cluster
    assert cluster is not None
    if observed.cluster is None and cluster.submission_id is None:
        draft.make(cluster.name)
    elif observed.cluster is not None and not observed.cluster.deleting:
        draft.update_cluster(uid=observed.cluster.uid)
        if changed:
            draft.make_again()


def _suspend(draft: Draft) -> None:
    """Save a checkpoint, stop, and release the pods; then leave Kueue's queue."""
    draft.set("Validated", "True", "Valid", emit=False)
    leave_line(draft, "Suspended")
    if not release_pods(draft, "Suspending"):
        draft.update(phase="Suspending")
        return
    draft.set("Suspended", "True", "Suspended", "the job holds no pods")
    draft.set("Stopping", "False", "NotStopping", emit=False)
    draft.set("Running", "False", "Suspended", emit=False)
    draft.set("ClusterReady", "False", "Suspended", emit=False)
    draft.update(phase="Suspended", devices=None, start_time=None, attempt_time=None)
    if draft.observed.workload is not None:
        draft.set("Admitted", "False", "Suspended", emit=False)
        draft.do(DeleteWorkload())


def _clean_up(draft: Draft) -> None:
    """Clean up after the end: stop what still runs, release the devices, and later delete the job."""
    observed, spec, status = draft.observed, draft.observed.spec, draft.status
    if spec is None:
        return
    if stop(draft, "Ended"):
        draft.requeue_after(POLL_SECONDS)
        return
    finish(draft)
    if observed.cluster is not None and not observed.cluster.deleting:
        if spec.cleanup_policy == "DeleteCluster":
            draft.do(DeleteCluster(cluster=observed.cluster.name))
        elif spec.cleanup_policy == "DeleteWorkers" and any(
            p.role != "head" for p in observed.pods
        ):
            draft.do(ReleaseWorkers(cluster=observed.cluster.name))
    left = draft.left(status.completion_time, spec.ttl_seconds_after_finished)
    if left is not None and left <= 0:
        draft.do(DeleteJob())
    elif left is not None:
        draft.requeue_after(left)
