"""What follows what: one decision each, on a world that is written down in full."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_jobs import make_job

from rljob_api.spec.guards import AlarmReport, Guards
from rljob_api.spec.problems import Problem
from rljob_api.spec.status import LastCheckpoint, Progress, RayClusterStatus, RLJobStatus
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_api.topology.resolved import resolve
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import Draft, condition, holds, rfc3339
from rljob_operator.decide.model import (
    AskStacks,
    Cluster,
    DeleteCluster,
    DeleteJob,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
    ReleaseWorkers,
    StopSubmission,
    Submit,
)
from rljob_operator.driver.progress import ask_checkpoint, ask_driver, ask_stacks
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus
from rljob_operator.reconcile.reconcile import new_failure
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.report.run_figures import RunFigures
from rljob_runtime.report.watch.runs import LocalRun
from rljob_runtime.run.alarm_actions import AlarmActions
from rljob_runtime.run.alarm_watch import AlarmWatch
from rljob_runtime.run.hangs.stacks_requests import StacksRequests
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.run.status_server import StatusServer

NOW = 1_000_000.0
SUBMISSION = "rljob-01234567-0"
TOLD = "missing: device-1 is in generate; stacks and dock: /runs/job/hangs/now"


def pods(*, ready: bool = True, **head: object) -> tuple[Pod, ...]:
    """The pods of a job on one node."""
    made = [
        Pod(name=role, uid=role, role=role, ready=ready, incarnation=f"{role}/0", node="node-1")
        for role in ("head", "worker", "warehouse")
    ]
    return (replace(made[0], **head), *made[1:])  # type: ignore[arg-type]


def status_server(folder: Path, stacks: StacksRequests) -> StatusServer:
    """The status endpoint of the driver whose run is in this folder."""
    return StatusServer(
        port=0,
        token="token",
        total_steps=9,
        requests=ScaleRequests(resolve(make_job()), clock=lambda: NOW),
        figures=RunFigures(),
        run=LocalRun(folder),
        stacks=stacks,
        save=threading.Event(),
        host="127.0.0.1",
    )


def running(**spec: Any) -> Observation:
    """A job whose driver runs, seen ten seconds after its attempt began."""
    status = RLJobStatus(
        observed_generation=1,
        start_time=rfc3339(NOW - 10),
        attempt_time=rfc3339(NOW - 10),
        attempt=0,
        restarts=0,
        ray_cluster=RayClusterStatus(
            name="job-0", uid="c", submission_id=SUBMISSION, head="head/0"
        ),
    )
    return Observation(
        identity=JobIdentity(namespace="team", name="job", uid="0123456789", generation=1),
        created=NOW - 20,
        deleting=False,
        spec=make_job(**spec).spec,
        problems=(),
        status=status,
        cluster=Cluster(name="job-0", uid="c"),
        pods=pods(),
        ray=RayAnswer(reached=True, job=RayJob(status=RayJobStatus.RUNNING)),
    )


def with_driver(
    seen: Observation, status: RayJobStatus, exit_code: int | None = None
) -> Observation:
    return replace(
        seen, ray=RayAnswer(reached=True, job=RayJob(status=status, exit_code=exit_code))
    )


def new(**spec: Any) -> Observation:
    return replace(
        running(**spec), status=RLJobStatus(), cluster=None, pods=(), ray=RayAnswer(reached=False)
    )


def after(seen: Observation, now: float = NOW) -> Observation:
    """The same world once the decision's status is written."""
    return replace(seen, status=decide(seen, now).status)


def test_a_new_job_gets_its_children_under_a_name_that_is_in_the_status() -> None:
    decision = decide(new(), NOW)

    assert decision.actions == (MakeChildren(cluster="job-0"),)
    assert decision.status.ray_cluster == RayClusterStatus(name="job-0")
    assert (decision.status.phase, decision.status.attempt) == ("Starting", 0)
    assert holds(decision.status, "Validated")


def test_a_refused_job_says_why_and_gets_nothing() -> None:
    seen = replace(new(), spec=None, problems=(Problem("spec.steps", "is 0; use 1 or more"),))

    decision = decide(seen, NOW)

    assert decision.actions == ()
    assert decision.status.phase == "Invalid"
    (event,) = decision.events
    assert event.warning
    assert event.message == "spec.steps: is 0; use 1 or more"


def test_pods_that_cannot_be_scheduled_are_told_on_the_job() -> None:
    waiting = [replace(p, ready=False, problem="0/2 nodes: 2 Insufficient NPU") for p in pods()]
    seen = replace(after(new()), cluster=Cluster(name="job-0", uid="c"), pods=tuple(waiting))

    told = condition(decide(seen, NOW).status, "ClusterReady")

    assert told is not None
    assert told.message.startswith("0 of 1 head pods are ready; 0 of 1 worker pods are ready")
    assert "pod worker: 0/2 nodes: 2 Insufficient NPU" in told.message


def test_devices_are_told_only_where_pods_need_them_of_a_node() -> None:
    waiting = [replace(p, ready=False, node="", problem="no memory") for p in pods()]
    seen = replace(after(new()), cluster=Cluster(name="job-0", uid="c"), pods=tuple(waiting))
    assert seen.spec is not None
    ascend = seen.spec.accelerator.model_copy(update={"type": "ascend910b", "devices_per_node": 8})
    on_ascend = replace(seen, spec=seen.spec.model_copy(update={"accelerator": ascend}))

    emulated, real = (condition(decide(s, NOW).status, "ClusterReady") for s in (seen, on_ascend))

    assert emulated is not None and real is not None
    assert "1 worker pods have no node; pod head: no memory" in emulated.message
    assert "1 worker pods have no node; they need 8 huawei.com/Ascend910; pod" in real.message


def test_a_job_whose_pods_never_start_fails_with_their_names_and_reasons() -> None:
    head, *others = pods(ready=False)
    waiting = (head, *(replace(pod, problem="ImagePullBackOff") for pod in others))
    seen = after(new(startDeadlineSeconds=100))

    seen = replace(seen, cluster=Cluster(name="job-0", uid="c"), pods=waiting)
    failed = condition(decide(seen, NOW + 100).status, "Failed")

    assert failed is not None
    assert failed.reason == "StartDeadlineExceeded"
    assert failed.message.endswith(
        "pod worker: ImagePullBackOff; pod warehouse: ImagePullBackOff; pod head is not ready yet"
    )


def test_ready_pods_get_the_submission_whose_id_is_in_the_status() -> None:
    seen = replace(after(new()), cluster=Cluster(name="job-0", uid="c"), pods=pods())

    decision = decide(seen, NOW)

    assert decision.actions == (Submit(submission=SUBMISSION),)
    assert decision.status.ray_cluster is not None
    assert decision.status.ray_cluster.submission_id == SUBMISSION
    assert decision.status.ray_cluster.head == "head/0"
    assert decision.status.devices == "1/1"


def test_devices_are_those_of_pods_that_are_ready_and_not_more_than_the_job_has() -> None:
    job = new(accelerator={"nodes": 2, "devicesPerNode": 4}, batch={"globalBatchSize": 8})
    head, worker, warehouse = pods()
    late = replace(worker, name="late", uid="late", ready=False)

    for workers, told in {(worker, late): "4/8", (worker, worker, worker): "8/8"}.items():
        seen = replace(
            after(job), cluster=Cluster(name="job-0", uid="c"), pods=(head, *workers, warehouse)
        )
        assert decide(seen, NOW).status.devices == told


def test_a_condition_is_an_event_when_its_status_or_reason_changes_and_not_for_its_words() -> None:
    draft = Draft(running(), NOW)

    for status, reason, words in [
        ("False", "PodsMissing", "1 of 2"),
        ("False", "PodsMissing", "none of 2"),
        ("False", "HeadLost", "gone"),
        ("True", "HeadLost", "there"),
    ]:
        draft.set("ClusterReady", status, reason, words)  # type: ignore[arg-type]

    told = [(event.reason, event.message) for event in draft.events]
    assert told == [("PodsMissing", "1 of 2"), ("HeadLost", "gone"), ("HeadLost", "there")]


def test_a_submission_that_did_not_arrive_is_sent_again_under_the_same_id() -> None:
    seen = replace(running(), ray=RayAnswer(reached=True, job=None))

    assert decide(seen, NOW).actions == (Submit(submission=SUBMISSION),)


def test_progress_is_passed_on() -> None:
    seen = replace(running(), progress=Progress(step=2, total_steps=4, reward=0.5))

    status = decide(seen, NOW).status

    assert status.progress == seen.progress
    assert (status.phase, holds(status, "Running")) == ("Running", True)


def test_a_failed_driver_starts_again_on_the_same_pods_and_counts() -> None:
    decision = decide(with_driver(running(), RayJobStatus.FAILED, exit_code=1), NOW)

    assert decision.actions == ()
    assert (decision.status.attempt, decision.status.restarts) == (1, 1)
    assert [failure.reason for failure in decision.status.failures] == ["DriverFailed"]
    later = decide(replace(running(), status=decision.status), NOW + 6)
    assert later.actions == (Submit(submission="rljob-01234567-1"),)


def test_a_failure_names_the_node_of_the_worker_that_was_killed_else_the_drivers() -> None:
    failed = with_driver(running(), RayJobStatus.FAILED, exit_code=1)
    pods = tuple(
        replace(pod, exit_code=137, node="b") if pod.role == "worker" else replace(pod, node="a")
        for pod in failed.pods
    )
    alone = tuple(replace(pod, exit_code=None) for pod in pods)

    named = [decide(replace(failed, pods=given), NOW).status.failures[0] for given in (alone, pods)]

    assert [(f.reason, f.node, f.exit_code) for f in named] == [
        ("DriverFailed", "a", 1),
        ("WorkerKilled", "b", 1),
    ]


def test_the_pause_before_an_attempt_grows_with_the_restarts() -> None:
    failed = decide(with_driver(running(), RayJobStatus.FAILED), NOW).status

    assert decide(replace(running(), status=failed), NOW + 4).actions == ()
    again = failed.model_copy(update={"restarts": 3})
    assert decide(replace(running(), status=again), NOW + 19).actions == ()
    assert decide(replace(running(), status=again), NOW + 21).actions != ()


def test_a_head_that_restarted_in_place_is_a_new_attempt_on_new_pods() -> None:
    seen = replace(running(), pods=pods(incarnation="head/1", exit_code=137))

    decision = decide(seen, NOW)

    assert decision.actions == (DeleteCluster(cluster="job-0"),)
    assert decision.status.ray_cluster is None
    assert decision.status.failures[0].exit_code == 137
    older = replace(
        seen,
        status=decision.status,
        cluster=None,
        pods=(),
        older=(Cluster(name="job-0", uid="c", deleting=True),),
        older_pods=seen.pods,
    )
    assert decide(older, NOW + 1).actions == (MakeChildren(cluster="job-1"),)


def test_a_driver_that_ray_has_forgotten_is_not_started_in_the_new_head() -> None:
    forgotten = replace(after(running()), ray=RayAnswer(reached=True, job=None))

    decision = decide(forgotten, NOW)

    assert decision.actions == (DeleteCluster(cluster="job-0"),)
    assert decision.status.failures[0].reason == "HeadLost"
    assert decision.status.attempt == 1


def test_a_new_attempt_waits_for_the_end_of_the_older_head() -> None:
    lost = decide(replace(running(), pods=pods(incarnation="head/1")), NOW).status
    status = decide(replace(running(), status=lost, cluster=None, pods=()), NOW + 1).status
    seen = replace(
        running(),
        status=status,
        cluster=Cluster(name="job-1", uid="d"),
        older=(Cluster(name="job-0", uid="c", deleting=True),),
        older_pods=(replace(pods()[0], deleting_since=NOW),),
    )

    assert decide(seen, NOW + 30).actions == ()
    assert decide(seen, NOW + 61).actions != ()  # its node does not answer


def test_a_disruption_does_not_count() -> None:
    seen = replace(running(backoffLimit=0), pods=pods(incarnation="head/1", disrupted=True))

    status = decide(seen, NOW).status

    assert (status.attempt, status.restarts) == (1, 0)
    assert not holds(status, "Failed")


def test_the_driver_of_a_head_that_somebody_deletes_has_the_pods_time_for_a_checkpoint() -> None:
    going = replace(running(), pods=pods(deleting_since=NOW + 30, disrupted=True))

    waits, over = decide(going, NOW), decide(going, NOW + 31)
    ended = decide(with_driver(going, RayJobStatus.FAILED, 3), NOW + 1)

    assert (waits.actions, waits.status.attempt, waits.requeue_seconds) == ((), 0, 1.0)
    for decision in (over, ended):
        assert decision.actions == (DeleteCluster(cluster="job-0"),)
        assert (decision.status.attempt, decision.status.restarts) == (1, 0)


def test_a_raycluster_that_kueue_suspends_stays_and_counts_as_no_restart() -> None:
    seen = replace(running(), cluster=Cluster(name="job-0", uid="c", suspended=True))

    stopping = decide(replace(seen, pods=pods(deleting_since=NOW + 30)), NOW)
    evicted = replace(seen, pods=(), ray=RayAnswer(reached=False))
    gone = decide(evicted, NOW + 9)
    waiting = decide(after(evicted), NOW + 10)

    assert (stopping.actions, stopping.status.attempt) == ((), 0)
    assert (gone.actions, gone.status.attempt, gone.status.restarts) == ((), 1, 0)
    assert gone.status.ray_cluster == RayClusterStatus(name="job-0", uid="c")
    assert waiting.actions == ()
    told = condition(waiting.status, "ClusterReady")
    assert told is not None and "suspended: it waits for Kueue" in told.message


def test_restarts_over_the_limit_fail_the_job_with_the_last_reason() -> None:
    seen = with_driver(running(backoffLimit=0), RayJobStatus.FAILED, exit_code=1)

    status = decide(replace(seen, log="Traceback: out of memory"), NOW).status

    failed = condition(status, "Failed")
    assert failed is not None
    assert failed.reason == "BackoffLimitExceeded"
    assert "Traceback: out of memory" in failed.message


def test_a_condition_says_the_end_of_a_long_log_where_the_driver_says_who_was_missing() -> None:
    why = "stage reward: 1 of 1 workers did not finish within 60 s; missing: reward-0 is in score"
    log = "\n".join([*(f"step {i}/99  {'x' * 100}" for i in range(19)), why])
    seen = with_driver(running(backoffLimit=0), RayJobStatus.FAILED, exit_code=1)

    status = decide(replace(seen, log=log), NOW).status

    failed = condition(status, "Failed")
    assert failed is not None
    assert failed.message.endswith(why)


def test_alarms_are_a_condition_from_the_first_one_on() -> None:
    alarm = AlarmReport(name="entropyCollapse", step=7, message="entropy 0.002 nats a token")
    calm = decide(replace(running(), alarms=()), NOW)
    raised = decide(replace(running(), alarms=(alarm,)), NOW)
    over = decide(replace(running(), status=raised.status, alarms=()), NOW + 9)

    assert condition(calm.status, "GuardAlarm") is None
    told = condition(raised.status, "GuardAlarm")
    assert told is not None
    assert (told.status, told.reason) == ("True", "EntropyCollapse")
    assert told.message == "step 7: entropy 0.002 nats a token"
    assert [e.warning for e in raised.events if e.reason == "EntropyCollapse"] == [True]
    after = condition(over.status, "GuardAlarm")
    assert after is not None
    assert (after.status, after.reason) == ("False", "NoAlarm")
    unasked = decide(replace(running(), status=raised.status), NOW + 9)
    assert holds(unasked.status, "GuardAlarm")


def test_devices_that_training_goes_on_without_are_a_condition_and_end_no_attempt() -> None:
    one = ReplicasReport(step=9, live=1, wanted=2, left_out=[1], hosts=["worker-b"])
    calm = decide(replace(running(), replicas=ReplicasReport(step=0, live=2, wanted=2)), NOW)
    seen = replace(running(), pods=tuple(p for p in running().pods if p.role != "worker"))
    fewer = decide(replace(seen, replicas=one), NOW)
    both = ReplicasReport(step=20, live=2, wanted=2)
    again = decide(replace(running(), status=fewer.status, replicas=both), NOW + 99)

    assert condition(calm.status, "FewerReplicas") is None
    told = condition(fewer.status, "FewerReplicas")
    assert told is not None
    assert (told.status, told.reason) == ("True", "DevicesMissing")
    assert told.message == "1 of 2 replicas train since step 9, without device 1 (worker-b)"
    assert [e.warning for e in fewer.events if e.reason == "DevicesMissing"] == [True]
    assert holds(fewer.status, "Running")
    assert fewer.status.attempt == running().status.attempt
    after = condition(again.status, "FewerReplicas")
    assert after is not None
    assert (after.status, after.reason) == ("False", "AllReplicasTrain")


async def test_the_condition_says_what_a_driver_tells_of_its_alarms(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    watch = AlarmWatch(guards=Guards(), compares=True)
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=1)
    alarm_actions = AlarmActions(watch=watch, log=log, store=store)
    server = status_server(tmp_path, StacksRequests())
    log.subscribe(server.on_event)
    told = []
    async with aiohttp.ClientSession() as session:
        for step, cut in enumerate([0.75] * 5 + [0.0], 1):
            alarm_actions.observe(step, {"response_length/clipped_share": cut})
            report = await ask_driver(session, f"http://127.0.0.1:{server.port}", "token")
            assert report is not None
            seen = running() if not told else replace(running(), status=told[-1])
            told.append(decide(replace(seen, alarms=report.alarms), NOW).status)
    server.close()
    log.close()

    calm, raised, over = (condition(told[i], "GuardAlarm") for i in (3, 4, 5))
    assert calm is None
    assert raised is not None
    assert (raised.status, raised.reason) == ("True", "Truncation")
    assert raised.message.startswith("step 5: 75% of the responses are cut at")
    assert over is not None
    assert (over.status, over.reason) == ("False", "NoAlarm")


def test_a_job_that_a_guard_stopped_is_not_tried_again() -> None:
    status = decide(with_driver(running(), RayJobStatus.FAILED, exit_code=4), NOW).status

    assert holds(status, "Failed")
    assert (status.restarts, status.failures[0].reason) == (0, "GuardStopped")


def test_a_run_that_a_deadline_of_its_own_ended_hung_and_is_tried_again() -> None:
    status = decide(with_driver(running(), RayJobStatus.FAILED, exit_code=5), NOW).status

    assert (status.attempt, status.restarts) == (1, 1)
    assert status.failures[0].reason == "Hung"


@pytest.mark.parametrize(("restarts", "failed"), [(0, True), (3, False)])
def test_a_failure_is_counted_by_its_own_reason_also_where_it_ends_the_job(
    restarts: int, failed: bool
) -> None:
    seen = with_driver(running(backoffLimit=restarts), RayJobStatus.FAILED, exit_code=5)

    status = decide(seen, NOW).status

    assert holds(status, "Failed") == failed
    assert new_failure(seen.status, status) == "Hung"
    assert new_failure(status, status) == ""


def test_a_job_that_fails_without_an_attempt_is_counted() -> None:
    seen = after(new(startDeadlineSeconds=100))

    status = decide(seen, NOW + 100).status

    assert new_failure(seen.status, status) == "StartDeadlineExceeded"


def test_a_job_that_the_runtime_refuses_is_not_tried_again() -> None:
    status = decide(with_driver(running(), RayJobStatus.FAILED, exit_code=2), NOW).status

    assert holds(status, "Failed")
    assert status.restarts == 0


@pytest.mark.parametrize(
    ("action", "restarts", "failed"),
    [("FailJob", 0, True), ("Ignore", 0, False), ("Restart", 1, False)],
)
def test_the_first_matching_rule_of_the_failure_policy_decides(
    action: str, restarts: int, failed: bool
) -> None:
    rules = [{"action": action, "onExitCodes": [7]}, {"action": "FailJob", "onExitCodes": [7]}]
    seen = with_driver(running(failurePolicy={"rules": rules}), RayJobStatus.FAILED, exit_code=7)

    status = decide(seen, NOW).status

    assert (status.restarts, holds(status, "Failed")) == (restarts, failed)


def test_a_silent_head_is_lost_after_a_minute() -> None:
    seen = after(replace(running(), ray=RayAnswer(reached=False)))

    assert decide(seen, NOW + 59).status.attempt == 0
    assert decide(seen, NOW + 61).status.failures[0].reason == "HeadLost"


@pytest.mark.parametrize("suspend", [False, True])
def test_a_hiccup_of_the_head_changes_nothing(suspend: bool) -> None:
    seen = replace(after(running()), spec=make_job(suspend=suspend).spec)
    hiccup = replace(seen, ray=RayAnswer(reached=False, hiccup=True))

    decision = decide(hiccup, NOW + 5)

    assert not decision.actions and not decision.events
    assert decision.status.conditions[0] == seen.status.conditions[0]
    assert decision.status.ray_cluster == seen.status.ray_cluster
    assert decision.requeue_seconds is not None


@pytest.mark.parametrize(
    ("deadline", "reason"),
    [
        ("activeDeadlineSeconds", "DeadlineExceeded"),
        ("startDeadlineSeconds", "StartDeadlineExceeded"),
    ],
)
def test_deadlines_fail_the_job(deadline: str, reason: str) -> None:
    seen = replace(after(new(**{deadline: 100})), cluster=Cluster(name="job-0", uid="c"))

    assert not holds(decide(seen, NOW + 99).status, "Failed")
    failed = condition(decide(seen, NOW + 100).status, "Failed")

    assert failed is not None
    assert failed.reason == reason


def test_a_hang_is_found_by_missing_progress_and_starts_again() -> None:
    moved = after(
        replace(running(progressDeadlineSeconds=60), progress=Progress(step=1, total_steps=4))
    )

    assert decide(moved, NOW + 59).status.attempt == 0
    asked = decide(moved, NOW + 61)
    decision = decide(replace(moved, status=asked.status, stacks=TOLD), NOW + 62)

    why = "no step ended within progressDeadlineSeconds, 60"
    assert asked.actions == (AskStacks(deadline="progressDeadlineSeconds", message=why),)
    assert (asked.status.attempt, asked.status.failures) == (0, [])
    (failure,) = decision.status.failures
    assert (failure.reason, failure.message) == ("NoProgress", f"{why}; {TOLD}")
    assert decision.actions == (DeleteCluster(cluster="job-0"),)


def test_time_that_pods_were_waited_for_is_no_lack_of_progress() -> None:
    seen = running(progressDeadlineSeconds=60)
    seen = replace(
        seen, status=seen.status.model_copy(update={"attempt_time": rfc3339(NOW - 7200)})
    )

    began = decide(seen, NOW)

    assert (began.actions, began.status.phase) == ((), "Running")
    assert decide(after(seen), NOW + 59).actions == ()
    assert isinstance(decide(after(seen), NOW + 60).actions[0], AskStacks)


def test_a_job_that_does_not_answer_ends_at_its_deadline_all_the_same() -> None:
    seen = after(running(activeDeadlineSeconds=100))

    (asked,) = decide(seen, NOW + 100).actions
    failed = condition(decide(replace(seen, stacks=""), NOW + 115).status, "Failed")

    assert isinstance(asked, AskStacks)
    assert failed is not None
    assert failed.reason == "DeadlineExceeded"
    assert failed.message == (
        "did not end within activeDeadlineSeconds, 100; its driver gave no answer when it was asked "
        "for stacks"
    )


def test_a_step_that_ends_while_stacks_are_asked_for_is_progress() -> None:
    seen = after(running(progressDeadlineSeconds=60))
    moved = replace(seen, progress=Progress(step=1, total_steps=4), stacks=TOLD)

    decision = decide(moved, NOW + 61)

    assert (decision.actions, decision.status.attempt) == ((), 0)


async def test_a_driver_that_is_asked_tells_what_it_was_doing_and_where_its_stacks_are(
    tmp_path: Path,
) -> None:
    folder, asked = tmp_path / "run" / "hangs" / "now", list[tuple[str, str]]()

    @dataclass(frozen=True)
    class Looked:
        folder: Path | None
        missing_text: str = "missing: reward-0 is in score (task/rewards/scorer_pool.py:91)"
        waits: str = "device-0: waits 61.3 s in all_reduce"

    def dump(deadline: str, why: str) -> Looked:
        asked.append((deadline, why))
        return Looked(folder)

    server = status_server(tmp_path, StacksRequests(dump=dump))
    url = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as session:
        told = await ask_stacks(session, url, "token", deadline="progress", message="no step")
        refused = await ask_stacks(session, url, "another", deadline="progress", message="no step")
        wrong = await ask_stacks(session, url, "token", deadline="", message="no step")
    server.close()

    assert told == f"{Looked.missing_text}; {Looked.waits}; stacks and dock: {folder}"
    assert (refused, wrong) == ("", "")
    assert asked == [("progress", "no step")]


async def test_a_driver_takes_up_that_it_is_to_save_and_who_refuses_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = status_server(tmp_path, StacksRequests())
    url = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as session:
        await ask_checkpoint(session, url, "another")
        refused = server.save.is_set()
        await ask_checkpoint(session, url, "token")
        taken_up = server.save.is_set()
        server.close()
        await ask_checkpoint(session, url, "token")

    assert (refused, taken_up) == (False, True)
    wrong_token, gone = [record.getMessage() for record in caplog.records]
    assert wrong_token == "checkpoint refused by the driver: 401"
    assert gone.startswith("checkpoint: the driver gave no answer (")


def test_success_frees_the_devices_and_keeps_the_head() -> None:
    done = after(with_driver(running(), RayJobStatus.SUCCEEDED))

    assert holds(done.status, "Succeeded")
    assert done.status.phase == "Succeeded"
    assert decide(done, NOW).actions == (ReleaseWorkers(cluster="job-0"),)
    head_alone = replace(done, pods=done.pods[:1])
    assert decide(head_alone, NOW).actions == ()


@pytest.mark.parametrize(("early_stop", "step"), [(None, 20), ({"patience": 2}, 7)])
def test_a_job_that_may_stop_early_is_not_said_to_have_done_all_steps(
    early_stop: dict[str, int] | None, step: int
) -> None:
    evaluation = {"prompts": 8, "every": 1, "earlyStop": early_stop}
    seen = with_driver(running(steps=20, evaluation=evaluation), RayJobStatus.SUCCEEDED)
    last = Progress(step=7, total_steps=20)

    done = after(replace(seen, progress=last))

    assert done.status.progress is not None
    assert done.status.progress.step == step


@pytest.mark.parametrize(
    ("policy", "actions"), [("Retain", ()), ("DeleteCluster", (DeleteCluster(cluster="job-0"),))]
)
def test_other_cleanup_policies(policy: str, actions: tuple[object, ...]) -> None:
    done = after(with_driver(running(cleanupPolicy=policy), RayJobStatus.SUCCEEDED))

    assert decide(done, NOW).actions == actions


def test_a_finished_job_is_deleted_after_its_time_to_live() -> None:
    seen = running(ttlSecondsAfterFinished=50, cleanupPolicy="Retain")
    done = after(with_driver(seen, RayJobStatus.SUCCEEDED))

    assert decide(done, NOW + 49).actions == ()
    assert decide(done, NOW + 50).actions == (DeleteJob(),)


def test_a_deadline_stops_the_driver_before_its_pods_go() -> None:
    late = after(replace(running(activeDeadlineSeconds=5), stacks=TOLD))

    assert holds(late.status, "Failed")
    assert decide(late, NOW).actions == (StopSubmission(submission=SUBMISSION),)


def test_suspension_stops_the_driver_then_releases_the_pods_then_says_so() -> None:
    asked = running(suspend=True)

    first = decide(asked, NOW)
    stopped = with_driver(replace(asked, status=first.status), RayJobStatus.STOPPED)
    second = decide(stopped, NOW + 5)
    gone = replace(stopped, status=second.status, cluster=None, pods=())
    third = decide(gone, NOW + 9)

    assert first.actions == (StopSubmission(submission=SUBMISSION),)
    assert second.actions == (DeleteCluster(cluster="job-0"),)
    assert third.actions == ()
    assert (third.status.phase, holds(third.status, "Suspended")) == ("Suspended", True)
    assert third.status.restarts == 0


def test_the_checkpoint_that_a_suspended_driver_told_is_kept_behind_its_end() -> None:
    left = LastCheckpoint(step=7, path="/runs/step-7", time="2026-01-01T00:00:00Z")
    told = after(replace(running(suspend=True), checkpoint=left))
    ended = with_driver(replace(told, checkpoint=None), RayJobStatus.STOPPED)

    assert decide(ended, NOW + 1).status.last_checkpoint == left


def test_a_driver_that_does_not_stop_loses_its_pods_all_the_same() -> None:
    asked = replace(after(running(suspend=True)), stop_seconds=240)

    assert decide(asked, NOW + 239).actions == (StopSubmission(submission=SUBMISSION),)
    assert decide(asked, NOW + 240).actions == (DeleteCluster(cluster="job-0"),)


def test_a_resumed_job_goes_on_from_its_checkpoint_under_a_new_id() -> None:
    suspended = replace(running(suspend=True), cluster=None, pods=(), ray=RayAnswer(reached=False))
    cleared = suspended.status.model_copy(update={"ray_cluster": None, "attempt": 1})
    status = decide(replace(suspended, status=cleared), NOW).status
    resumed = after(replace(new(), status=status))
    seen = replace(resumed, cluster=Cluster(name="job-1", uid="d"), pods=pods())

    assert decide(seen, NOW).actions == (Submit(submission="rljob-01234567-1"),)


def test_a_deleted_job_is_left_to_the_garbage_collector() -> None:
    decision = decide(replace(running(), deleting=True), NOW)

    assert (decision.actions, decision.events) == ((), ())


def test_a_changed_spec_is_applied_to_the_running_cluster() -> None:
    seen = after(running())
    changed = replace(seen, identity=replace(seen.identity, generation=2))

    assert MakeChildren(cluster="job-0") in decide(changed, NOW).actions
    assert MakeChildren(cluster="job-0") not in decide(seen, NOW).actions
