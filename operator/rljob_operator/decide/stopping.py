"""Release a job's pods without losing a step: save a checkpoint, then end driver and RayCluster.

Used by `decide` for a suspension and a job's end, and by `admission` for an eviction.
"""

from rljob_operator.decide.attempt import POLL_SECONDS
from rljob_operator.decide.draft import Draft
from rljob_operator.decide.model import DeleteCluster, StopSubmission


def release_pods(draft: Draft, reason: str) -> bool:
    """Save a checkpoint, stop, and delete the RayCluster; return True once the job holds no pods."""
    observed, cluster = draft.observed, draft.status.ray_cluster
    if cluster is None and not observed.pods and not observed.older_pods:
        return True
    draft.requeue_after(POLL_SECONDS)
    if observed.checkpoint is not None:  # only a running driver reports it
        draft.update(last_checkpoint=observed.checkpoint)
    if cluster is None or stop(draft, reason):
        return False
    draft.do(DeleteCluster(cluster=cluster.name))
    draft.update(ray_cluster=None, attempt=(draft.status.attempt or 0) + 1)
    return False


def stop(draft: Draft, reason: str) -> bool:
    """Ask the driver to save a checkpoint and end; return False once it has, or after `stop_seconds`."""
    if draft.observed.ray.hiccup:
        return True
    job, cluster = draft.observed.ray.job, draft.status.ray_cluster
    if cluster is None or cluster.submission_id is None or job is None or job.status.is_final:
        return False
    draft.set("Stopping", "True", reason, "leaving a checkpoint")
    draft.set("Running", "False", reason, emit=False)
    if draft.since("Stopping") >= draft.observed.stop_seconds:
        return False
    draft.do(StopSubmission(submission=cluster.submission_id))
    return True
