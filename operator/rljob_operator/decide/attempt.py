"""One attempt of a job: wait for its pods, submit it once, supervise it, and evaluate its end.

Used by `decide`. A new attempt is submitted only if the head of the previous one is gone, or its driver is
known to have ended.
"""

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.lifecycle import FailureReason
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_operator.decide.chips import handle_chips, hit_by_chips
from rljob_operator.decide.draft import Draft, condition, holds, rfc3339, unix
from rljob_operator.decide.elastic import keep_scale
from rljob_operator.decide.failures import (
    AttemptFailure,
    action_of,
    backoff_seconds,
    recorded,
)
from rljob_operator.decide.model import AskStacks, DeleteCluster, DeletePod, JobEvent, Pod, Submit
from rljob_operator.decide.readiness import missing_pods, set_devices, set_pods_ready
from rljob_operator.decide.turns import leave_line, take_turn
from rljob_operator.driver.ray_jobs import RayJob

POLL_SECONDS = 5.0
SUBMITTED_POLL_SECONDS = 1.0
STARTING_POLL_SECONDS = 15.0
HEAD_SILENT_SECONDS = 60.0
"""A head that does not answer for this long is lost."""
KILLED = 137
STUCK_SECONDS = 60.0
"""A head that has been terminating for this long is on a node that does not answer."""
LOST_SECONDS = 10.0
"""The limit for other pods, of which two may run safely: after the grace period of each."""
SUSPENDED = "its RayCluster is suspended: Kueue has evicted it"
NO_STACKS = "its driver gave no answer when it was asked for stacks"
REASON_CHARACTERS = 850
"""Limit for the driver's last lines: a condition has 1000 characters for them and the text before."""


def submission_id(uid: str, attempt: int) -> str:
    """Return the id of an attempt's Ray job: the same whenever it is submitted again."""
    return f"rljob-{uid[:8]}-{attempt}"


def attempt_of(submission: str) -> int:
    """Return the number of the attempt that a submission belongs to."""
    return int(submission.rpartition("-")[2])


def start(draft: Draft) -> None:
    """Wait for the pods, then submit the driver."""
    observed, spec, status = draft.observed, draft.observed.spec, draft.status
    assert spec is not None and status.ray_cluster is not None
    draft.update(phase="Restarting" if status.attempt else "Starting")
    draft.set("Running", "False", "Starting", emit=False)
    set_devices(draft)
    if stuck := _stuck(draft):
        _end_attempt(draft, stuck)
        return
    _forget_lost(draft)
    handle_chips(draft, trains=False)
    missing = "; ".join(filter(None, (take_turn(draft), missing_pods(draft))))
    if missing:
        draft.set("ClusterReady", "False", "PodsNotReady", missing, emit=False)
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
    set_pods_ready(draft)
    pause = backoff_seconds(status.restarts or 0)
    wait = pause - (draft.unix_time - unix(status.attempt_time or rfc3339(draft.unix_time)))
    if wait > 0:
        draft.requeue_after(wait)
        return
    if _older_head_lives(draft):
        draft.requeue_after(POLL_SECONDS)
        return
    head = observed.head
    assert head is not None, "all pods are ready"
    attempt = status.attempt or 0
    submission = submission_id(observed.identity.uid, attempt)
    draft.update_cluster(submission_id=submission, head=head.incarnation)
    draft.do(Submit(submission=submission))
    draft.requeue_after(SUBMITTED_POLL_SECONDS)


def supervise(draft: Draft) -> None:
    """Supervise the submitted attempt."""
    if _leaves(draft):
        if draft.observed.checkpoint is not None:
            draft.update(last_checkpoint=draft.observed.checkpoint)
        draft.requeue_after(SUBMITTED_POLL_SECONDS)
        return
    lost = _lost(draft)
    if lost is not None:
        _end_attempt(draft, lost)
        return
    _forget_lost(draft)
    if draft.observed.ray.hiccup:
        draft.requeue_after(POLL_SECONDS)
        return
    if not draft.observed.ray.reached:
        draft.set("ClusterReady", "False", "HeadSilent", "the head does not answer")
        if draft.since("ClusterReady") >= HEAD_SILENT_SECONDS:
            message = f"the head did not answer for {HEAD_SILENT_SECONDS:.0f} s"
            _end_attempt(draft, _head_lost(draft, message))
        draft.requeue_after(POLL_SECONDS)
        return
    set_pods_ready(draft)
    job, cluster = draft.observed.ray.job, draft.status.ray_cluster
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
    """Return how the driver failed, and on which node: that of a killed worker, else its own."""
    reason: FailureReason = "DriverFailed"
    node = draft.observed.head.node if draft.observed.head else None
    killed = next(
        (pod for pod in draft.observed.of_role("worker") if pod.exit_code == KILLED), None
    )
    if killed is not None:
        reason, node = "WorkerKilled", killed.node
    elif job.status == "STOPPED":
        reason = "Stopped"
    elif job.exit_code == ExitCode.STOPPED:
        reason = "GuardStopped"
    elif job.exit_code == ExitCode.HUNG:
        reason = "Hung"
    message = _last_lines(draft.observed.log) or job.message or f"Ray says {job.status}"
    return AttemptFailure(
        reason=reason,
        message=message,
        node=node,
        exit_code=job.exit_code,
        disrupted=hit_by_chips(draft) or any(pod.disrupted for pod in draft.observed.pods),
    )


def _last_lines(log: str) -> str:
    """Return as many last lines as fit into a condition, since a driver's last output says why it failed."""
    room, lines = REASON_CHARACTERS, list[str]()
    for line in reversed(log.splitlines()):
        room -= len(line) + 1
        if lines and room < 0:
            break
        lines.append(line)
    return "\n".join(reversed(lines))


def _watch(draft: Draft) -> None:
    """Report the progress of a running driver, and detect a hang."""
    observed, spec = draft.observed, draft.observed.spec
    assert spec is not None
    draft.set("Running", "True", "Running")
    draft.update(phase="Running")
    set_devices(draft)
    if observed.progress is not None and observed.progress != draft.status.progress:
        moved = (
            draft.status.progress is None or observed.progress.step != draft.status.progress.step
        )
        draft.update(progress=observed.progress)
        if moved:
            draft.update(progress_time=rfc3339(draft.unix_time))
    if observed.checkpoint is not None:
        draft.update(last_checkpoint=observed.checkpoint)
    if observed.data_path is not None:
        draft.update(dock_data_path=observed.data_path)
    if observed.alarms is not None:
        _set_alarms(draft, observed.alarms)
    if observed.replicas is not None:
        _set_replicas(draft, observed.replicas)
    limit = spec.progress_deadline_seconds
    runs = condition(draft.status, "Running")
    assert runs is not None, "it was set above"
    since = max(runs.last_transition_time, draft.status.progress_time or "")
    left = draft.left(since, limit)
    if left is not None and left <= 0:
        name = "progressDeadlineSeconds"
        message = deadline_message(draft, name, f"no step ended within {name}, {limit}")
        if message is not None:
            _end_attempt(draft, AttemptFailure(reason="NoProgress", message=message, lost=True))
        return
    handle_chips(draft, trains=True)
    keep_scale(draft)
    draft.requeue_after([left, observed.poll_seconds])


def deadline_message(draft: Draft, deadline: str, message: str) -> str | None:
    """Return the message of a passed deadline, with what the run was doing and where its stacks are, or the
    pods that it waited for. Return None while the driver is asked for them, since it ends with its pods."""
    job = draft.observed.ray.job
    if job is None or job.status.is_final:
        return "; ".join(filter(None, (message, missing_pods(draft))))
    if draft.observed.stacks is None:
        draft.do(AskStacks(deadline=deadline, message=message))
        draft.requeue_after(0.5)
        return None
    return f"{message}; {draft.observed.stacks or NO_STACKS}"


def _set_alarms(draft: Draft, alarms: tuple[AlarmReport, ...]) -> None:
    """Set the condition of the run's guards, from the first alarm on."""
    if alarms:
        reason = alarms[-1].name[:1].upper() + alarms[-1].name[1:]
        message = "; ".join(f"step {alarm.step}: {alarm.message}" for alarm in reversed(alarms))
        draft.set("GuardAlarm", "True", reason, message)
    elif holds(draft.status, "GuardAlarm"):
        draft.set("GuardAlarm", "False", "NoAlarm", emit=False)


def _set_replicas(draft: Draft, replicas: ReplicasReport) -> None:
    """Set the condition of devices that training continues without, from the first one on. The attempt
    continues: missing pods do not end it, and steps are still made."""
    if replicas.left_out:
        missing = ", ".join(map(str, replicas.left_out))
        message = (
            f"{replicas.live} of {replicas.wanted} replicas train since step {replicas.step}, without device"
            f"{'s' * (len(replicas.left_out) > 1)} {missing} ({', '.join(replicas.hosts)})"
        )
        draft.set("FewerReplicas", "True", "DevicesMissing", message)
    elif holds(draft.status, "FewerReplicas"):
        draft.set("FewerReplicas", "False", "AllReplicasTrain", emit=False)


def _lost(draft: Draft) -> AttemptFailure | None:
    """Return why the submitted attempt cannot be running any more, judging only from its pods."""
    observed, cluster = draft.observed, draft.status.ray_cluster
    assert cluster is not None
    if observed.cluster is None or observed.cluster.deleting:
        return AttemptFailure(reason="ClusterLost", message="its RayCluster was deleted", lost=True)
    head = observed.head
    if head is None and observed.cluster.suspended:
        return AttemptFailure(reason="HeadLost", message=SUSPENDED, disrupted=True)
    if head is None or head.incarnation != cluster.head:
        message = "the head's container or pod is another one than the driver was started in"
        return _head_lost(draft, message)
    return _stuck(draft)


def _leaves(draft: Draft) -> bool:
    """Return whether the head is being deleted while its driver still runs. Within the pod's grace period the
    driver saves a checkpoint, for which it needs the other pods."""
    observed, cluster, job = draft.observed, draft.status.ray_cluster, draft.observed.ray.job
    assert cluster is not None
    if observed.cluster is None or observed.cluster.deleting or job is None or job.status.is_final:
        return False
    going = [pod for pod in observed.of_role("head") if pod.incarnation == cluster.head]
    deleted = any(
        p.deleting_since is not None and p.deleting_since > draft.unix_time for p in going
    )
    return observed.head is None and deleted


def _head_lost(draft: Draft, message: str) -> AttemptFailure:
    """Return the failure of a lost head, with the pod that exists or that is terminating."""
    heads = draft.observed.of_role("head")
    pod = draft.observed.head or next(iter(heads), None)
    return AttemptFailure(
        reason="HeadLost",
        message=message,
        node=pod.node if pod else None,
        exit_code=pod.exit_code if pod else None,
        disrupted=any(pod.disrupted for pod in heads),
        lost=True,
    )


def _forget_lost(draft: Draft) -> None:
    """Remove workers and warehouses whose node does not answer, since KubeRay does not replace them while
    they exist. The run stopped using them as soon as Ray detected their loss."""
    for pod in draft.observed.pods:
        if pod.role == "head" or pod.deleting_since is None:
            continue
        left = pod.deleting_since + LOST_SECONDS - draft.unix_time
        if left > 0:
            draft.requeue_after(left)
            continue
        draft.do(DeletePod(pod=pod.name, force=True))
        message = f"pod {pod.name} is replaced: its node {pod.node} does not say that it has ended"
        draft.events.append(JobEvent(reason="NodeLost", message=message, warning=True))


def _stuck(draft: Draft) -> AttemptFailure | None:
    """Return the failure of a head whose node does not answer, or None."""
    pod = next(
        (pod for pod in draft.observed.of_role("head") if _is_stuck(pod, draft.unix_time)), None
    )
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
    """Record the failure; then start the next attempt, or end the job."""
    spec, status = draft.observed.spec, draft.status
    assert spec is not None and status.ray_cluster is not None
    attempt, restarts = status.attempt or 0, status.restarts or 0
    timestamp = rfc3339(draft.unix_time)
    draft.update(failures=recorded(status.failures, failure, attempt=attempt, time=timestamp))
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
        attempt=attempt + 1, restarts=restarts + counted, attempt_time=timestamp, phase="Restarting"
    )
    draft.set("Running", "False", failure.reason, failure.message)
    outdated = draft.observed.cluster is not None and draft.observed.cluster.outdated
    if failure.lost or outdated:  # the operator was upgraded: the next attempt has its images
        draft.do(DeleteCluster(cluster=status.ray_cluster.name))
        draft.update(ray_cluster=None)
    else:
        draft.update_cluster(submission_id=None, head=None)
    draft.requeue_after(0.5)


def _succeed(draft: Draft) -> None:
    spec, progress = draft.observed.spec, draft.observed.progress or draft.status.progress
    assert spec is not None
    stops_early = spec.evaluation is not None and spec.evaluation.early_stop is not None
    if progress is not None:
        changes = {"total_steps": spec.steps, "eta_seconds": 0}
        if not stops_early:  # the driver may have ended before its last step was read
            changes["step"] = spec.steps
        draft.update(progress=progress.model_copy(update=changes))
    if draft.observed.checkpoint is not None:
        draft.update(last_checkpoint=draft.observed.checkpoint)
    draft.update(phase="Succeeded", completion_time=rfc3339(draft.unix_time))
    draft.set("Running", "False", "Succeeded", emit=False)
    message = "every step is done"
    if stops_early:
        message += ", or evaluations stopped getting better"
    draft.set("Succeeded", "True", "StepsDone", message)
    draft.requeue_after(0.5)


def fail(draft: Draft, reason: str, message: str) -> None:
    """Fail the job permanently; nothing more is created for it."""
    draft.actions.clear()
    draft.update(phase="Failed", completion_time=rfc3339(draft.unix_time))
    draft.set("Running", "False", reason, emit=False)
    leave_line(draft, "Ended")
    draft.set("Failed", "True", reason, message)
    draft.requeue_after(0.5)


def _older_head_lives(draft: Draft) -> bool:
    """Return whether the head of an earlier cluster may still run a driver."""
    return any(
        pod.role == "head" and not _is_stuck(pod, draft.unix_time)
        for pod in draft.observed.older_pods
    )


def _is_stuck(pod: Pod, unix_time: float) -> bool:
    return pod.deleting_since is not None and unix_time - pod.deleting_since >= STUCK_SECONDS
