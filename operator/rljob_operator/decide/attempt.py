"""One attempt of a job: wait for its pods, submit it once, look after it, judge its end.

Used by `decide`. A new attempt is submitted only when the head of the one before is gone, or its driver
is known to have ended.
"""

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.lifecycle import FailureReason
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_operator.decide.chips import hit_by_chips, look_at_chips
from rljob_operator.decide.draft import Draft, condition, holds, rfc3339, unix
from rljob_operator.decide.elastic import keep_scale
from rljob_operator.decide.failures import (
    AttemptFailure,
    action_of,
    backoff_seconds,
    recorded,
)
from rljob_operator.decide.model import AskStacks, DeleteCluster, DeletePod, Event, Pod, Submit
from rljob_operator.decide.readiness import missing_pods, tell_devices, tell_pods
from rljob_operator.decide.turns import leave_line, take_turn
from rljob_operator.driver.ray_jobs import RayJob

POLL_SECONDS = 5.0
SUBMITTED_POLL_SECONDS = 1.0
STARTING_POLL_SECONDS = 15.0
HEAD_SILENT_SECONDS = 60.0
"""A head that does not answer for so long is lost."""
KILLED = 137
STUCK_SECONDS = 60.0
"""A head that is being deleted for so long is on a node that does not answer."""
LOST_SECONDS = 10.0
"""The same of other pods, which hold nothing that two must not do: beyond the time that each has to end."""
SUSPENDED = "its RayCluster is suspended: Kueue has evicted it"
NO_STACKS = "its driver gave no answer when it was asked for stacks"
REASON_CHARACTERS = 850
"""Of the driver's last lines: a condition has 1000 for them and what is said before."""


def submission_id(uid: str, attempt: int) -> str:
    """Id of an attempt's Ray job: the same whenever it is submitted again."""
    return f"rljob-{uid[:8]}-{attempt}"


def attempt_of(submission: str) -> int:
    """Number of the attempt that a submission is of."""
    return int(submission.rpartition("-")[2])


def start(draft: Draft) -> None:
    """Wait for the pods, then submit."""
    seen, spec, status = draft.seen, draft.seen.spec, draft.status
    assert spec is not None and status.ray_cluster is not None
    draft.update(phase="Restarting" if status.attempt else "Starting")
    draft.set("Running", "False", "Starting", tell=False)
    tell_devices(draft)
    if stuck := _stuck(draft):
        _end_attempt(draft, stuck)
        return
    _forget_lost(draft)
    look_at_chips(draft, trains=False)
    missing = "; ".join(filter(None, (take_turn(draft), missing_pods(draft))))
    if missing:
        draft.set("ClusterReady", "False", "PodsNotReady", missing, tell=False)
        left = draft.left(status.attempt_time, spec.start_deadline_seconds)
        if left is not None and left <= 0:
            limit = spec.start_deadline_seconds
            fail(
                draft,
                "StartDeadlineExceeded",
                f"not ready after startDeadlineSeconds, {limit}: {missing}",
            )
            return
        draft.requeue_after([left, STARTING_POLL_SECONDS])
        return
    tell_pods(draft)
    pause = backoff_seconds(status.restarts or 0)
    wait = pause - (draft.now - unix(status.attempt_time or rfc3339(draft.now)))
    if wait > 0:
        draft.requeue_after(wait)
        return
    if _older_head_lives(draft):
        draft.requeue_after(POLL_SECONDS)
        return
    head = seen.head
    assert head is not None, "all pods are ready"
    attempt = status.attempt or 0
    submission = submission_id(seen.identity.uid, attempt)
    draft.update_cluster(submission_id=submission, head=head.incarnation)
    draft.do(Submit(submission=submission))
    draft.requeue_after(SUBMITTED_POLL_SECONDS)


def supervise(draft: Draft) -> None:
    """Look after the submitted attempt."""
    if _leaves(draft):
        if draft.seen.checkpoint is not None:
            draft.update(last_checkpoint=draft.seen.checkpoint)
        draft.requeue_after(SUBMITTED_POLL_SECONDS)
        return
    lost = _lost(draft)
    if lost is not None:
        _end_attempt(draft, lost)
        return
    _forget_lost(draft)
    if draft.seen.ray.hiccup:
        draft.requeue_after(POLL_SECONDS)
        return
    if not draft.seen.ray.reached:
        draft.set("ClusterReady", "False", "HeadSilent", "the head does not answer")
        if draft.since("ClusterReady") >= HEAD_SILENT_SECONDS:
            message = f"the head did not answer for {HEAD_SILENT_SECONDS:.0f} s"
            _end_attempt(draft, _head_lost(draft, message))
        draft.requeue_after(POLL_SECONDS)
        return
    tell_pods(draft)
    job, cluster = draft.seen.ray.job, draft.status.ray_cluster
    assert cluster is not None and cluster.submission_id is not None
    if job is None and holds(draft.status, "Running"):
        message = "Ray does not know the driver any more: its head has started anew"
        _end_attempt(draft, _head_lost(draft, message))
    elif job is None:  # the status was written and the submission did not arrive
        draft.do(Submit(submission=cluster.submission_id))
        draft.requeue_after(SUBMITTED_POLL_SECONDS)
    elif not job.status.is_final:
        _watch(draft)
    elif job.status == "SUCCEEDED":
        _succeed(draft)
    else:
        _end_attempt(draft, _driver_ended(draft, job))


def _driver_ended(draft: Draft, job: RayJob) -> AttemptFailure:
    """How the driver failed, and on which node: that of a worker that was killed, else its own."""
    reason: FailureReason = "DriverFailed"
    node = draft.seen.head.node if draft.seen.head else None
    killed = next((pod for pod in draft.seen.of_role("worker") if pod.exit_code == KILLED), None)
    if killed is not None:
        reason, node = "WorkerKilled", killed.node
    elif job.status == "STOPPED":
        reason = "Stopped"
    elif job.exit_code == ExitCode.STOPPED:
        reason = "GuardStopped"
    elif job.exit_code == ExitCode.HUNG:
        reason = "Hung"
    message = _last_lines(draft.seen.log) or job.message or f"Ray says {job.status}"
    return AttemptFailure(
        reason=reason,
        message=message,
        node=node,
        exit_code=job.exit_code,
        disrupted=hit_by_chips(draft) or any(pod.disrupted for pod in draft.seen.pods),
    )


def _last_lines(log: str) -> str:
    """What a condition has room for: a driver says at its end why it failed."""
    room, kept = REASON_CHARACTERS, list[str]()
    for line in reversed(log.splitlines()):
        room -= len(line) + 1
        if kept and room < 0:
            break
        kept.append(line)
    return "\n".join(reversed(kept))


def _watch(draft: Draft) -> None:
    """The driver runs: pass its progress on, find a hang."""
    seen, spec = draft.seen, draft.seen.spec
    assert spec is not None
    draft.set("Running", "True", "Running")
    draft.update(phase="Running")
    tell_devices(draft)
    if seen.progress is not None and seen.progress != draft.status.progress:
        moved = draft.status.progress is None or seen.progress.step != draft.status.progress.step
        draft.update(progress=seen.progress)
        if moved:
            draft.update(progress_time=rfc3339(draft.now))
    if seen.checkpoint is not None:
        draft.update(last_checkpoint=seen.checkpoint)
    if seen.data_path is not None:
        draft.update(dock_data_path=seen.data_path)
    if seen.alarms is not None:
        _tell_alarms(draft, seen.alarms)
    if seen.replicas is not None:
        _tell_replicas(draft, seen.replicas)
    limit = spec.progress_deadline_seconds
    runs = condition(draft.status, "Running")
    assert runs is not None, "it was set above"
    since = max(runs.last_transition_time, draft.status.progress_time or "")
    left = draft.left(since, limit)
    if left is not None and left <= 0:
        name = "progressDeadlineSeconds"
        message = told_of_deadline(draft, name, f"no step ended within {name}, {limit}")
        if message is not None:
            _end_attempt(draft, AttemptFailure(reason="NoProgress", message=message, lost=True))
        return
    look_at_chips(draft, trains=True)
    keep_scale(draft)
    draft.requeue_after([left, seen.poll_seconds])


def told_of_deadline(draft: Draft, deadline: str, message: str) -> str | None:
    """The message of a deadline that has passed, with what the run was doing and where its stacks are, or the
    pods that it waited for; None while the driver is asked, which goes with its pods."""
    job = draft.seen.ray.job
    if job is None or job.status.is_final:
        return "; ".join(filter(None, (message, missing_pods(draft))))
    if draft.seen.stacks is None:
        draft.do(AskStacks(deadline=deadline, message=message))
        draft.requeue_after(0.5)
        return None
    return f"{message}; {draft.seen.stacks or NO_STACKS}"


def _tell_alarms(draft: Draft, alarms: tuple[AlarmReport, ...]) -> None:
    """The run's guards as a condition, from the first alarm on."""
    if alarms:
        reason = alarms[-1].name[:1].upper() + alarms[-1].name[1:]
        told = "; ".join(f"step {alarm.step}: {alarm.message}" for alarm in reversed(alarms))
        draft.set("GuardAlarm", "True", reason, told)
    elif holds(draft.status, "GuardAlarm"):
        draft.set("GuardAlarm", "False", "NoAlarm", tell=False)


def _tell_replicas(draft: Draft, replicas: ReplicasReport) -> None:
    """Devices that training goes on without as a condition, from the first one on. The attempt goes on: pods
    that are missing end none, and steps are made."""
    if replicas.left_out:
        missing = ", ".join(map(str, replicas.left_out))
        told = (
            f"{replicas.live} of {replicas.wanted} replicas train since step {replicas.step}, without device"
            f"{'s' * (len(replicas.left_out) > 1)} {missing} ({', '.join(replicas.hosts)})"
        )
        draft.set("FewerReplicas", "True", "DevicesMissing", told)
    elif holds(draft.status, "FewerReplicas"):
        draft.set("FewerReplicas", "False", "AllReplicasTrain", tell=False)


def _lost(draft: Draft) -> AttemptFailure | None:
    """Why the submitted attempt cannot be alive any more, from its pods alone."""
    seen, cluster = draft.seen, draft.status.ray_cluster
    assert cluster is not None
    if seen.cluster is None or seen.cluster.deleting:
        return AttemptFailure(reason="ClusterLost", message="its RayCluster was deleted", lost=True)
    head = seen.head
    if head is None and seen.cluster.suspended:
        return AttemptFailure(reason="HeadLost", message=SUSPENDED, disrupted=True)
    if head is None or head.incarnation != cluster.head:
        message = "the head's container or pod is another one than the driver was started in"
        return _head_lost(draft, message)
    return _stuck(draft)


def _leaves(draft: Draft) -> bool:
    """Whether somebody deletes the head, whose driver still lives: within the pod's time it leaves a
    checkpoint, for which it needs the other pods."""
    seen, cluster, job = draft.seen, draft.status.ray_cluster, draft.seen.ray.job
    assert cluster is not None
    if seen.cluster is None or seen.cluster.deleting or job is None or job.status.is_final:
        return False
    going = [pod for pod in seen.of_role("head") if pod.incarnation == cluster.head]
    deleted = any(p.deleting_since is not None and p.deleting_since > draft.now for p in going)
    return seen.head is None and deleted


def _head_lost(draft: Draft, message: str) -> AttemptFailure:
    """The head is lost, in the pod that is there now or that is going."""
    heads = draft.seen.of_role("head")
    pod = draft.seen.head or next(iter(heads), None)
    return AttemptFailure(
        reason="HeadLost",
        message=message,
        node=pod.node if pod else None,
        exit_code=pod.exit_code if pod else None,
        disrupted=any(pod.disrupted for pod in heads),
        lost=True,
    )


def _forget_lost(draft: Draft) -> None:
    """Remove workers and warehouses whose node does not answer: KubeRay makes no others while they are there.
    The run has left them as soon as Ray missed them."""
    for pod in draft.seen.pods:
        if pod.role == "head" or pod.deleting_since is None:
            continue
        left = pod.deleting_since + LOST_SECONDS - draft.now
        if left > 0:
            draft.requeue_after(left)
            continue
        draft.do(DeletePod(pod=pod.name, force=True))
        message = f"pod {pod.name} is replaced: its node {pod.node} does not say that it has ended"
        draft.events.append(Event(reason="NodeLost", message=message, warning=True))


def _stuck(draft: Draft) -> AttemptFailure | None:
    """A head whose node does not answer."""
    pod = next((pod for pod in draft.seen.of_role("head") if _is_stuck(pod, draft.now)), None)
    if pod is None:
        return None
    return AttemptFailure(
        reason="NodeLost",
        message=f"pod {pod.name} has been Terminating on {pod.node} for {STUCK_SECONDS:.0f} s",
        node=pod.node,
        disrupted=True,
        lost=True,
    )


def _end_attempt(draft: Draft, failure: AttemptFailure) -> None:
    """Record the failure; then the next attempt, or the end of the job."""
    spec, status = draft.seen.spec, draft.status
    assert spec is not None and status.ray_cluster is not None
    attempt, restarts = status.attempt or 0, status.restarts or 0
    now = rfc3339(draft.now)
    draft.update(failures=recorded(status.failures, failure, attempt=attempt, time=now))
    action = action_of(failure, spec.failure_policy)
    if action == "FailJob":
        fail(draft, failure.reason, failure.message)
        return
    counted = action == "Restart"
    if counted and restarts >= spec.backoff_limit:
        fail(
            draft,
            "BackoffLimitExceeded",
            f"{restarts} restarts are all that backoffLimit allows; the last failure was "
            f"{failure.reason}: {failure.message}",
        )
        return
    draft.update(
        attempt=attempt + 1, restarts=restarts + counted, attempt_time=now, phase="Restarting"
    )
    draft.set("Running", "False", failure.reason, failure.message)
    outdated = draft.seen.cluster is not None and draft.seen.cluster.outdated
    if failure.lost or outdated:  # the operator was upgraded: the next attempt has its images
        draft.do(DeleteCluster(cluster=status.ray_cluster.name))
        draft.update(ray_cluster=None)
    else:
        draft.update_cluster(submission_id=None, head=None)
    draft.requeue_after(0.5)


def _succeed(draft: Draft) -> None:
    spec, progress = draft.seen.spec, draft.seen.progress or draft.status.progress
    assert spec is not None
    stops_early = spec.evaluation is not None and spec.evaluation.early_stop is not None
    if progress is not None:
        done = {"total_steps": spec.steps, "eta_seconds": 0}
        if not stops_early:  # the driver may have ended before it was asked about its last step
            done["step"] = spec.steps
        draft.update(progress=progress.model_copy(update=done))
    if draft.seen.checkpoint is not None:
        draft.update(last_checkpoint=draft.seen.checkpoint)
    draft.update(phase="Succeeded", completion_time=rfc3339(draft.now))
    draft.set("Running", "False", "Succeeded", tell=False)
    message = "every step is done"
    if stops_early:
        message += ", or evaluations stopped getting better"
    draft.set("Succeeded", "True", "StepsDone", message)
    draft.requeue_after(0.5)


def fail(draft: Draft, reason: str, message: str) -> None:
    """The job has failed for good; nothing more is made for it."""
    draft.actions.clear()
    draft.update(phase="Failed", completion_time=rfc3339(draft.now))
    draft.set("Running", "False", reason, tell=False)
    leave_line(draft, "Ended")
    draft.set("Failed", "True", reason, message)
    draft.requeue_after(0.5)


def _older_head_lives(draft: Draft) -> bool:
    """Whether the head of an earlier cluster may still run a driver."""
    return any(
        pod.role == "head" and not _is_stuck(pod, draft.now) for pod in draft.seen.older_pods
    )


def _is_stuck(pod: Pod, now: float) -> bool:
    return pod.deleting_since is not None and now - pod.deleting_since >= STUCK_SECONDS
