"""Decide the next actions for an RLJob from what was observed. Called by `reconcile`. Does no I/O.

What an action needs to be recognised again (the cluster's name, the submission's id) is written to the
status before the action is taken, so that a repeated action meets its own first try.
"""

from rljob_api.spec.status import RayClusterStatus
from rljob_operator.build.names import cluster_name
from rljob_operator.decide.admission import finish, is_admitted, tell_kueue
from rljob_operator.decide.attempt import POLL_SECONDS, fail, start, supervise, told_of_deadline
from rljob_operator.decide.draft import Draft, holds, rfc3339
from rljob_operator.decide.model import (
    Decision,
    DeleteCluster,
    DeleteJob,
    DeleteWorkload,
    Observed,
    ReleaseWorkers,
)
from rljob_operator.decide.stopping import release_pods, stop
from rljob_operator.decide.turns import leave_line


def decide(seen: Observed, now: float) -> Decision:
    """The status as it should be, and what to do. now: unix seconds."""
    if seen.deleting:  # its children are owned by it, and go with it
        return Decision(status=seen.status)
    draft = Draft(seen, now)
    draft.do(*[DeleteCluster(cluster=c.name) for c in seen.older if not c.deleting])
    if holds(seen.status, "Succeeded") or holds(seen.status, "Failed"):
        _clean_up(draft)
    elif seen.spec is None:
        _refuse(draft)
    elif seen.spec.suspend:
        _suspend(draft)
    else:
        _run(draft)
    return draft.decision()


def _refuse(draft: Draft) -> None:
    problems = "; ".join(str(problem) for problem in draft.seen.problems)
    draft.set("Validated", "False", "InvalidSpec", problems)
    draft.update(phase="Invalid")


def _run(draft: Draft) -> None:
    seen, spec = draft.seen, draft.seen.spec
    assert spec is not None, "a job without a valid spec is refused, not run"
    draft.set("Validated", "True", "Valid", tell=False)
    if holds(seen.status, "Suspended"):
        draft.set("Suspended", "False", "Resumed", "goes on from the last checkpoint")
    if seen.queued and not is_admitted(draft):
        return
    draft.set("Stopping", "False", "NotStopping", tell=False)
    if draft.status.start_time is None:
        draft.update(start_time=rfc3339(draft.now), attempt_time=rfc3339(draft.now))
        draft.update(attempt=draft.status.attempt or 0, restarts=draft.status.restarts or 0)
    limit = spec.active_deadline_seconds
    left = draft.left(draft.status.start_time, limit)
    if left is not None and left <= 0:
        name = "activeDeadlineSeconds"
        message = told_of_deadline(draft, name, f"did not end within {name}, {limit}")
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
    if seen.queued:
        tell_kueue(draft)


def _keep_cluster(draft: Draft) -> None:
    """Name the cluster, make it, and apply its children again when the spec has changed."""
    seen = draft.seen
    attempt = draft.status.attempt or 0
    if draft.status.ray_cluster is None:
        name = cluster_name(seen.identity.name, attempt)
        draft.update(ray_cluster=RayClusterStatus(name=name))
    changed = seen.status.observed_generation != seen.identity.generation
    cluster = draft.status.ray_cluster
    assert cluster is not None
    if seen.cluster is None and cluster.submission_id is None:
        draft.make(cluster.name)
    elif seen.cluster is not None and not seen.cluster.deleting:
        draft.update_cluster(uid=seen.cluster.uid)
        if changed:
            draft.make_again()


def _suspend(draft: Draft) -> None:
    """Checkpoint, stop, release the pods; then leave Kueue's queue."""
    draft.set("Validated", "True", "Valid", tell=False)
    leave_line(draft, "Suspended")
    if not release_pods(draft, "Suspending"):
        draft.update(phase="Suspending")
        return
    draft.set("Suspended", "True", "Suspended", "the job holds no pods")
    draft.set("Stopping", "False", "NotStopping", tell=False)
    draft.set("Running", "False", "Suspended", tell=False)
    draft.set("ClusterReady", "False", "Suspended", tell=False)
    draft.update(phase="Suspended", devices=None, start_time=None, attempt_time=None)
    if draft.seen.workload is not None:
        draft.set("Admitted", "False", "Suspended", tell=False)
        draft.do(DeleteWorkload())


def _clean_up(draft: Draft) -> None:
    """After the end: stop what still runs, free the devices, later delete the job."""
    seen, spec, status = draft.seen, draft.seen.spec, draft.status
    if spec is None:
        return
    if stop(draft, "Ended"):
        draft.requeue_after(POLL_SECONDS)
        return
    finish(draft)
    if seen.cluster is not None and not seen.cluster.deleting:
        if spec.cleanup_policy == "DeleteCluster":
            draft.do(DeleteCluster(cluster=seen.cluster.name))
        elif spec.cleanup_policy == "DeleteWorkers" and any(p.role != "head" for p in seen.pods):
            draft.do(ReleaseWorkers(cluster=seen.cluster.name))
    left = draft.left(status.completion_time, spec.ttl_seconds_after_finished)
    if left is not None and left <= 0:
        draft.do(DeleteJob())
    elif left is not None:
        draft.requeue_after(left)
