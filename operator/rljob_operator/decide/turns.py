"""Whose turn it is to wait with devices in hand, where Kubernetes' own scheduler places pod by pod.

Used by `attempt`. Two jobs that got half of the devices each would wait for each other for ever. Of those
that lack room the first in line keeps its pods; others give theirs back, and ask again when it is their turn.
Kept between passes: the condition `Held` and status.steppedBackTime. Which nodes a pod may go to is not
looked at; so a job that waits asks now and then although it is not its turn.
"""

from collections.abc import Callable

from rljob_api.topology.devices import num_nodes
from rljob_api.topology.worker_pods import device_resource_name
from rljob_operator.decide.draft import Draft, condition, holds, rfc3339, unix
from rljob_operator.decide.model import Claim, DeleteCluster, Observed, ReleaseWorkers

PATIENCE_SECONDS = 30.0
"""A job gives its pods back once neither it nor the one before it got any further for so long."""
TURN_SECONDS = 300.0
"""A job steps behind the others once it got no further for so long and nobody has what it lacks; for as long
it leaves what it had to those that found no room at all. Of those that wait, one asks so often although it is
not its turn."""
ASKS = "asks for its worker pods again"


def claim_of(seen: Observed) -> Claim | None:
    """What other jobs are to know of this one; None where it has no devices that would come back."""
    spec, status = seen.spec, seen.status
    ended = holds(status, "Succeeded") or holds(status, "Failed")
    if spec is None or (ended and spec.cleanup_policy == "Retain"):
        return None
    workers = [pod for pod in seen.of_role("worker") if pod.deleting_since is None]
    placed = [pod for pod in (*seen.pods, *seen.older_pods) if pod.role == "worker" and pod.node]
    wanted = num_nodes(spec.placement, spec.accelerator)
    bound = min(wanted, sum(bool(pod.node) for pod in workers))
    stepped_back = status.stepped_back_time or ""
    began, held = status.attempt_time or "", condition(status, "Held")
    asked = unix(max(began, held.last_transition_time if held else "")) if began else 0.0
    cluster = status.ray_cluster
    starts = cluster is not None and cluster.submission_id is None and bool(began)
    goes_on = not (ended or spec.suspend or seen.deleting)
    lacks = holds(status, "Held") or bound < wanted
    return Claim(
        namespace=seen.identity.namespace,
        name=seen.identity.name,
        resource=device_resource_name(spec.accelerator),
        place=(max(began, stepped_back), seen.created, seen.identity.uid),
        wanted=wanted,
        bound=bound,
        devices_per_pod=spec.accelerator.devices_per_node,
        devices=len(placed) * spec.accelerator.devices_per_node,
        waits=starts and goes_on and lacks and spec.scheduling.scheduler == "default",
        held=holds(status, "Held"),
        refused=any(pod.no_room for pod in workers),
        asked=asked,
        stepped_back=unix(stepped_back) if stepped_back else 0.0,
        moved=max((pod.moved for pod in workers), default=asked),
    )


def take_turn(draft: Draft) -> str:
    """Give the worker pods back, or ask for them again; why the job cannot start for that, or ""."""
    own, cluster = claim_of(draft.seen), draft.seen.cluster
    if own is None or cluster is None or cluster.deleting:
        leave_line(draft, "AsksAgain", ASKS)  # a RayCluster that is made anew asks for all pods
        return ""
    reason, told = "", ""
    if own.waits:
        reason, told = (_waits if own.held else _gives_way)(draft, own)
    if told:
        draft.set("Held", "True", reason, told)
        if cluster.workers:
            draft.do(ReleaseWorkers(cluster=cluster.name))
        return told
    leave_line(draft, "AsksAgain", ASKS)
    if condition(draft.status, "Held") is None or cluster.workers:
        return ""
    if draft.seen.head is None:  # KubeRay makes no other in a cluster that once had all its pods
        draft.do(DeleteCluster(cluster=cluster.name))
    else:
        draft.make(cluster.name)
    return ASKS


def leave_line(draft: Draft, reason: str, message: str = "") -> None:
    """The job waits for no other one any more. message: for an event, "" for none."""
    if holds(draft.status, "Held"):
        draft.set("Held", "False", reason, message, tell=bool(message))


def _gives_way(draft: Draft, own: Claim) -> tuple[str, str]:
    """Why a job is to give its pods back: reason and message, "" where it is not."""
    if not _has_a_part(own) or draft.now - own.moved < PATIENCE_SECONDS:
        return "", ""
    before = _first_before(
        draft, own, lambda job: _has_a_part(job) and draft.now - job.moved >= PATIENCE_SECONDS
    )
    if before is not None:
        return "WaitsForJob", _waits_for(draft, before)
    lacking = (own.wanted - own.bound) * own.devices_per_pod
    theirs = sum(job.devices for job in draft.seen.rivals)
    others = any(job.waits and (job.held or job.refused) for job in draft.seen.rivals)
    if lacking <= theirs or not others or draft.now - own.moved < TURN_SECONDS:
        return "", ""
    draft.update(stepped_back_time=rfc3339(draft.now))
    return "StepsBack", (
        f"lets others try: it got no further for {TURN_SECONDS:.0f} s, and of the {lacking} "
        f"{own.resource} that it lacks other jobs have {theirs}"
    )


def _waits(draft: Draft, own: Claim) -> tuple[str, str]:
    """Why a job that has given its pods back asks for none yet: reason and message, "" where it asks."""
    rivals, since = draft.seen.rivals, draft.since("Held")
    stepped_back = max(job.stepped_back for job in (own, *rivals))
    given_up = draft.now - stepped_back < TURN_SECONDS
    before = _first_before(
        draft,
        own,
        lambda job: (
            job.held
            or _has_a_part(job)
            or draft.now - job.asked < PATIENCE_SECONDS
            or (given_up and job.refused)
        ),
    )
    waiting = 1 + sum(job.waits and job.held for job in rivals)
    if before is None or (since >= waiting * TURN_SECONDS and not given_up):
        return "", ""
    return "WaitsForJob", _waits_for(draft, before)


def _has_a_part(job: Claim) -> bool:
    """Whether it has pods in hand and found no room for others."""
    return not job.held and job.refused and job.bound > 0


def _first_before(draft: Draft, own: Claim, which: Callable[[Claim], bool]) -> Claim | None:
    """The first in line of those that wait before the job."""
    before = [job for job in draft.seen.rivals if job.waits and job.place < own.place]
    return min(filter(which, before), key=lambda job: job.place, default=None)


def _waits_for(draft: Draft, job: Claim) -> str:
    """Whom the job waits for; which jobs another namespace has is not for its users to know."""
    own = job.namespace == draft.seen.identity.namespace
    name = f"{job.namespace}/{job.name}" if own else "a job of another namespace"
    stepped_back = (draft.status.stepped_back_time or "") > (draft.status.attempt_time or "")
    turn = "whose turn comes first" if stepped_back else "which began before it"
    lacks = job.wanted if job.held else job.wanted - job.bound
    return f"waits for {name}, {turn} and lacks {lacks} of {job.wanted} worker pods"
