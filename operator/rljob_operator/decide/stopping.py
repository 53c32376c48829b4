"""How a job gives its pods back without losing a step: a checkpoint, then the end of driver and RayCluster.

Used by `decide` for a suspension and a job's end, and by `admission` for an eviction.
"""

from rljob_operator.decide.attempt import POLL_SECONDS
from rljob_operator.decide.draft import Draft
from rljob_operator.decide.model import DeleteCluster, StopSubmission


def release_pods(draft: Draft, reason: str) -> bool:
    """Checkpoint, stop, delete the RayCluster; True once the job holds no pods."""
    seen, cluster = draft.seen, draft.status.ray_cluster
    if cluster is None and not seen.pods and not seen.older_pods:
        return True
    draft.requeue_after(POLL_SECONDS)
    if seen.checkpoint is not None:  # while its driver lives: afterwards nobody tells
        draft.update(last_checkpoint=seen.checkpoint)
    if cluster is None or stop(draft, reason):
        return False
    draft.do(DeleteCluster(cluster=cluster.name))
    draft.update(ray_cluster=None, attempt=(draft.status.attempt or 0) + 1)
    return False


def stop(draft: Draft, reason: str) -> bool:
    """Ask the driver to leave a checkpoint and end; False once it has, or has had `stop_seconds`."""
    if draft.seen.ray.hiccup:
        return True
    job, cluster = draft.seen.ray.job, draft.status.ray_cluster
    if cluster is None or cluster.submission_id is None or job is None or job.status.is_final:
        return False
    draft.set("Stopping", "True", reason, "leaving a checkpoint")
    draft.set("Running", "False", reason, tell=False)
    if draft.since("Stopping") >= draft.seen.stop_seconds:
        return False
    draft.do(StopSubmission(submission=cluster.submission_id))
    return True
