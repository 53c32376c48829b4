"""Choose which job may wait while it holds devices, if Kubernetes' own scheduler places pod by pod.

Used by `attempt`. Two jobs that got half of the devices each would wait for each other forever. Among those
that lack room the first in line keeps its pods; others release theirs, and request them again when it is
their turn. Between passes the condition `Held` and status.steppedBackTime are stored. Which nodes a pod may
use is not considered, so a waiting job sometimes requests its pods out of turn.
"""

from collections.abc import Callable

from rljob_api.topology.devices import num_nodes
from rljob_api.topology.worker_pods import device_resource_name
from rljob_operator.decide.draft import Draft, condition, holds, rfc3339, unix
from rljob_operator.decide.model import DeleteCluster, DeviceClaim, Observation, ReleaseWorkers

PATIENCE_SECONDS = 30.0
"""A job releases its pods if neither it nor the one before it has made progress for this long."""
TURN_SECONDS = 300.0
"""A job steps behind the others after this long without progress if no job has what it lacks. For the same
time it leaves its devices to jobs that found no room at all. This often, one waiting job requests its pods
out of turn."""
ASKS = "asks for its worker pods again"


def claim_of(observed: Observation) -> DeviceClaim | None:
    """Return what other jobs need to know of this one, or None if it has no devices that it could release."""
    spec, status = observed.spec, observed.status
    ended = holds(status, "Succeeded") or holds(status, "Failed")
    if spec is None or (ended and spec.cleanup_policy == "Retain"):
        return None
    workers = [pod for pod in observed.of_role("worker") if pod.deleting_since is None]
    placed = [
        pod for pod in (*observed.pods, *observed.older_pods) if pod.role == "worker" and pod.node
    ]
    needed = num_nodes(spec.placement, spec.accelerator)
    bound = min(needed, sum(bool(pod.node) for pod in workers))
    stepped_back = status.stepped_back_time or ""
    began, held_condition = status.attempt_time or "", condition(status, "Held")
    requested_at = (
        unix(max(began, held_condition.last_transition_time if held_condition else ""))
        if began
        else 0.0
    )
    cluster = status.ray_cluster
    starts = cluster is not None and cluster.submission_id is None and bool(began)
    goes_on = not (ended or spec.suspend or observed.deleting)
    lacks = holds(status, "Held") or bound < needed
    return DeviceClaim(
        namespace=observed.identity.namespace,
        name=observed.identity.name,
        resource=device_resource_name(spec.accelerator),
        position=(max(began, stepped_back), observed.created, observed.identity.uid),
        needed=needed,
        bound=bound,
        devices_per_pod=spec.accelerator.devices_per_node,
        devices=len(placed) * spec.accelerator.devices_per_node,
        waits=starts and goes_on and lacks and spec.scheduling.scheduler == "default",
        is_held=holds(status, "Held"),
        refused=any(pod.no_room for pod in workers),
        requested_at=requested_at,
        stepped_back=unix(stepped_back) if stepped_back else 0.0,
        moved=max((pod.moved for pod in workers), default=requested_at),
    )


def take_turn(draft: Draft) -> str:
    """Release the worker pods, or request them again; return why the job cannot start because of that, or
    ""."""
    claim, cluster = claim_of(draft.observed), draft.observed.cluster
    if claim is None or cluster is None or cluster.deleting:
        leave_line(draft, "AsksAgain", ASKS)  # a new RayCluster requests all pods
        return ""
    reason, message = "", ""
    if claim.waits:
        reason, message = (_waits if claim.is_held else _gives_way)(draft, claim)
    if message:
        draft.set("Held", "True", reason, message)
        if cluster.workers:
            draft.do(ReleaseWorkers(cluster=cluster.name))
        return message
    leave_line(draft, "AsksAgain", ASKS)
    if condition(draft.status, "Held") is None or cluster.workers:
        return ""
    if (
        draft.observed.head is None
    ):  # KubeRay makes no other in a cluster that once had all its pods
        draft.do(DeleteCluster(cluster=cluster.name))
    else:
        draft.make(cluster.name)
    return ASKS


def leave_line(draft: Draft, reason: str, message: str = "") -> None:
    """End the job's waiting for other jobs. message: for an event, "" for none."""
    if holds(draft.status, "Held"):
        draft.set("Held", "False", reason, message, emit=bool(message))


def _gives_way(draft: Draft, claim: DeviceClaim) -> tuple[str, str]:
    """Return why a job must release its pods: reason and message, or "" if it must not."""
    if not _is_partly_placed(claim) or draft.unix_time - claim.moved < PATIENCE_SECONDS:
        return "", ""
    before = _first_before(
        draft,
        claim,
        lambda job: _is_partly_placed(job) and draft.unix_time - job.moved >= PATIENCE_SECONDS,
    )
    if before is not None:
        return "WaitsForJob", _waits_for(draft, before)
    lacking = (claim.needed - claim.bound) * claim.devices_per_pod
    rival_devices = sum(job.devices for job in draft.observed.rivals)
    others = any(job.waits and (job.is_held or job.refused) for job in draft.observed.rivals)
    if lacking <= rival_devices or not others or draft.unix_time - claim.moved < TURN_SECONDS:
        return "", ""
    draft.update(stepped_back_time=rfc3339(draft.unix_time))
    return "StepsBack", (
        f"lets others try: it got no further for {TURN_SECONDS:.0f} s, and of the {lacking} "
        f"{claim.resource} that it lacks other jobs have {rival_devices}"
    )


def _waits(draft: Draft, claim: DeviceClaim) -> tuple[str, str]:
    """Return why a job that has released its pods does not request them yet: reason and message, or "" if it
    does."""
    rivals, since = draft.observed.rivals, draft.since("Held")
    stepped_back = max(job.stepped_back for job in (claim, *rivals))
    given_up = draft.unix_time - stepped_back < TURN_SECONDS
    before = _first_before(
        draft,
        claim,
        lambda job: (
            job.is_held
            or _is_partly_placed(job)
            or draft.unix_time - job.requested_at < PATIENCE_SECONDS
            or (given_up and job.refused)
        ),
    )
    waiting = 1 + sum(job.waits and job.is_held for job in rivals)
    if before is None or (since >= waiting * TURN_SECONDS and not given_up):
        return "", ""
    return "WaitsForJob", _waits_for(draft, before)


def _is_partly_placed(job: DeviceClaim) -> bool:
    """Return whether the job holds some pods and found no room for others."""
    return not job.is_held and job.refused and job.bound > 0


def _first_before(
    draft: Draft, claim: DeviceClaim, which: Callable[[DeviceClaim], bool]
) -> DeviceClaim | None:
    """Return the first in line of the jobs that wait before this one."""
    before = [job for job in draft.observed.rivals if job.waits and job.position < claim.position]
    return min(filter(which, before), key=lambda job: job.position, default=None)


def _waits_for(draft: Draft, job: DeviceClaim) -> str:
    """Describe the job that this one waits for. Users of one namespace do not see the names of jobs in
    another."""
    is_visible = job.namespace == draft.observed.identity.namespace
    name = f"{job.namespace}/{job.name}" if is_visible else "a job of another namespace"
    stepped_back = (draft.status.stepped_back_time or "") > (draft.status.attempt_time or "")
    turn = "whose turn comes first" if stepped_back else "which began before it"
    lacks = job.needed if job.is_held else job.needed - job.bound
    return f"waits for {name}, {turn} and lacks {lacks} of {job.needed} worker pods"
