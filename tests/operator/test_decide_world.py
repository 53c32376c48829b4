"""Decisions against a world that fails: pods die, the operator dies between two actions, Ray is silent.

The world keeps what a cluster would keep. After every rule: at most one driver of the job is alive, no
submission id was used twice, and deciding again about an unchanged world changes nothing. Of a job in Kueue's
queue also: it has no pods without quota, and gives none back that has pods.
"""

from dataclasses import replace
from functools import partial

from cluster_jobs import make_job
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_api.spec.status import LastCheckpoint, Progress, RayClusterStatus, RLJobStatus
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, holds, rfc3339
from rljob_operator.decide.model import (
    Action,
    Cluster,
    DeleteCluster,
    DeleteJob,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    MakeChildren,
    MakeWorkload,
    Observation,
    Pod,
    RayAnswer,
    ReleaseQuota,
    ReleaseWorkers,
    StopSubmission,
    Submit,
    TellPods,
    Workload,
)
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus
from rljob_operator.watch.fault_reports import ChipFault

FINAL = ("SUCCEEDED", "FAILED", "STOPPED")


class World(RuleBasedStateMachine):
    """One RLJob with two nodes, its clusters, pods and drivers."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.spec = make_job(nodes=2, steps=4, backoffLimit=50).spec
        self.status = RLJobStatus()
        self.generation = 1
        self.clusters: dict[str, dict[str, Pod]] = {}
        self.drivers: dict[
            str, tuple[str, str, str]
        ] = {}  # submission: cluster, incarnation, state
        self.submitted: list[str] = []
        self.step = 0
        self.reachable = True
        self.faults: tuple[ChipFault, ...] = ()
        self.names = 0
        self.gone = False

    # What the operator does.

    def observed(self) -> Observation:
        named = self.status.ray_cluster
        present = self.clusters.get(named.name) if named else None
        others = {n: p for n, p in self.clusters.items() if not named or n != named.name}
        return Observation(
            identity=JobIdentity(
                namespace="team", name="job", uid="0123456789", generation=self.generation
            ),
            created=1_000_000.0,
            deleting=False,
            spec=self.spec,
            problems=(),
            status=self.status,
            cluster=Cluster(name=named.name, uid="c") if named and present is not None else None,
            older=tuple(Cluster(name=name, uid="c") for name in others),
            pods=tuple(present.values()) if present else (),
            older_pods=tuple(pod for pods in others.values() for pod in pods.values()),
            ray=self.answer(named) if named else RayAnswer(reached=False),
            progress=Progress(step=self.step, total_steps=4) if self.step else None,
            faults=self.faults,
            faulty_nodes=("node-1",) if self.faults else (),
            checkpoint=(
                LastCheckpoint(step=self.step, path="/c", time=rfc3339(0)) if self.step else None
            ),
        )

    def answer(self, named: RayClusterStatus) -> RayAnswer:
        head = self.head(named.name)
        if head is None or not head.ready or not self.reachable:
            return RayAnswer(reached=False)
        driver = self.drivers.get(named.submission_id)
        if driver is None or driver[:2] != (named.name, head.incarnation):
            return RayAnswer(reached=True)
        return RayAnswer(reached=True, job=RayJob(status=RayJobStatus(driver[2])))

    def act(self, action: Action) -> None:
        match action:
            case MakeChildren(cluster=name):
                if name not in self.clusters:
                    self.clusters[name] = {}
                    for role in ("head", "worker", "worker", "warehouse", "warehouse"):
                        self.add_pod(name, role)
            case DeleteCluster(cluster=name):
                self.clusters.pop(name, None)
                self.end_drivers(name)
            case DeletePod(pod=pod, force=force):
                named = self.status.ray_cluster
                assert named is not None, "pods of no cluster"
                pods = self.clusters[named.name]
                if pod in pods and (force or pods[pod].deleting_since is None):
                    self.add_pod(named.name, pods.pop(pod).role)
            case ReleaseWorkers(cluster=name):
                pods = self.clusters.get(name, {})
                self.clusters[name] = {k: p for k, p in pods.items() if p.role == "head"}
            case Submit(submission=submission):
                named = self.status.ray_cluster
                assert named is not None and named.submission_id == submission, "status comes first"
                head = self.head(named.name)
                if head is None or not head.ready or not self.reachable:
                    return  # no answer: unknown to the operator
                if submission in self.drivers and self.drivers[submission][:2] == (
                    named.name,
                    head.incarnation,
                ):
                    return  # Ray refuses an id that it knows
                self.submitted.append(submission)
                self.drivers[submission] = (named.name, head.incarnation, "RUNNING")
            case StopSubmission(submission=submission):
                self.end_driver(submission, "STOPPED")
            case DeleteJob():
                self.gone = True

    @precondition(lambda self: not self.gone)
    @rule(crash_after=st.one_of(st.none(), st.integers(0, 3)))
    def reconcile(self, crash_after: int | None) -> None:
        """A pass of the operator, which may die after so many of its calls (the first is the status)."""
        decision = decide(self.observed(), self.now)
        calls = [lambda: setattr(self, "status", decision.status)]
        calls += [partial(self.act, action) for action in decision.actions]
        for call in calls[:crash_after]:
            call()

    # What the world does.

    @rule()
    def pods_become_ready(self) -> None:
        self.each_pod(lambda pod: replace(pod, ready=pod.deleting_since is None))

    @rule(seconds=st.sampled_from([1.0, 10.0, 61.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def training_goes_on(self) -> None:
        for submission, (cluster, incarnation, state) in list(self.drivers.items()):
            if state == "RUNNING":
                self.step = min(4, self.step + 1)
                state = "SUCCEEDED" if self.step == 4 else state
                self.drivers[submission] = (cluster, incarnation, state)

    @rule()
    def a_driver_fails(self) -> None:
        for submission in self.drivers:
            self.end_driver(submission, "FAILED")

    @rule()
    def heads_restart_in_place(self) -> None:
        self.names += 1
        incarnation = f"again-{self.names}"
        for name in self.clusters:
            self.end_drivers(name)
        self.each_pod(
            lambda pod: replace(pod, incarnation=incarnation) if pod.role == "head" else pod
        )

    @rule(role=st.sampled_from(["head", "worker", "warehouse"]))
    def a_node_goes_silent(self, role: str) -> None:
        """Its pods stay Terminating; a driver there is cut off and dead."""
        for name, pods in self.clusters.items():
            victim = next((p for p in pods.values() if p.role == role), None)
            if victim is not None and victim.deleting_since is None:
                pods[victim.uid] = replace(victim, ready=False, deleting_since=self.now)
                self.end_drivers(name)

    @rule(reachable=st.booleans())
    def ray_answers_or_not(self, reachable: bool) -> None:
        self.reachable = reachable

    @rule(level=st.sampled_from(["", "SubHealthFault", "SeparateNPU"]))
    def a_chip_fails_or_recovers(self, level: str) -> None:
        fault = ChipFault(node="node-1", chip="Ascend910-0", level=level, since=self.now)
        self.faults = (fault,) if level else ()

    @rule(suspend=st.booleans())
    def suspend_or_resume(self, suspend: bool) -> None:
        self.spec = self.spec.model_copy(update={"suspend": suspend})
        self.generation += 1

    # What must hold.

    @invariant()
    def at_most_one_driver_is_alive(self) -> None:
        alive = [s for s, (_, _, state) in self.drivers.items() if state not in FINAL]
        assert len(alive) <= 1, alive

    @invariant()
    def no_submission_id_is_used_twice(self) -> None:
        assert len(set(self.submitted)) == len(self.submitted), self.submitted

    @invariant()
    def deciding_about_an_unchanged_world_comes_to_rest(self) -> None:
        """Status after status is written until one says what is already stored, and says it silently."""
        seen = self.observed()
        for _ in range(5):
            decision = decide(seen, self.now)
            if decision.actions or self.gone:
                return
            if decision.status == seen.status:
                assert decision.events == ()
                return
            seen = replace(seen, status=decision.status)
        raise AssertionError(f"the status does not come to rest: {seen.status}")

    def teardown(self) -> None:
        """Once the failures end, the job ends; never by itself with a suspended job's pods in place."""
        self.reachable = True
        if self.spec.suspend:
            self.suspend_or_resume(False)
        for _ in range(200):
            if self.gone or not _active(self.status):
                break
            self.now += 30.0
            self.reconcile(None)
            self.pods_become_ready()
            self.training_goes_on()
        if holds(self.status, "Failed"):
            failed = condition(self.status, "Failed")
            assert failed is not None and failed.reason == "BackoffLimitExceeded"
        else:
            assert holds(self.status, "Succeeded"), self.status

    # Helpers.

    def add_pod(self, cluster: str, role: str) -> None:
        self.names += 1
        uid = f"{role}-{self.names}"
        self.clusters[cluster][uid] = Pod(
            name=uid,
            uid=uid,
            role=role,  # type: ignore[arg-type]
            ready=False,
            incarnation=uid,
            node="node-1",
            created=self.now,
        )

    def head(self, cluster: str) -> Pod | None:
        pods = self.clusters.get(cluster, {}).values()
        return next((p for p in pods if p.role == "head" and p.deleting_since is None), None)

    def each_pod(self, change) -> None:
        for pods in self.clusters.values():
            for uid, pod in pods.items():
                pods[uid] = change(pod)

    def end_driver(self, submission: str, state: str) -> None:
        if submission in self.drivers and self.drivers[submission][2] not in FINAL:
            self.drivers[submission] = (*self.drivers[submission][:2], state)

    def end_drivers(self, cluster: str) -> None:
        for submission, (place, _, _) in list(self.drivers.items()):
            if place == cluster:
                self.end_driver(submission, "FAILED")


class QueuedWorld(World):
    """The same job as a Workload of Kueue, which admits and evicts as it likes; generous, it admits at
    once."""

    def __init__(self) -> None:
        super().__init__()
        self.workload: Workload | None = None
        self.generous = False

    def observed(self) -> Observation:
        if self.generous:
            self.kueue_admits()
        return replace(super().observed(), queued=True, workload=self.workload)

    def act(self, action: Action) -> None:
        match action:
            case MakeWorkload():
                self.workload = self.workload or Workload(name="job-rljob", message="no quota")
            case DeleteWorkload():
                assert not self.pods(), "its quota is given back with its pods in place"
                self.workload = None
            case ReleaseQuota():
                assert not self.pods(), "its quota is given back with its pods in place"
                self.change(admitted=False, reserved=False)
            case TellPods(ready=ready):
                self.change(pods_ready=ready)
            case FinishWorkload():
                self.change(finished=True, admitted=False, reserved=False)
            case MakeChildren():
                if self.workload is not None and self.workload.admitted:  # else evicted since
                    super().act(action)
            case _:
                super().act(action)

    def change(self, **fields) -> None:
        if self.workload is not None:
            self.workload = replace(self.workload, **fields)

    def pods(self) -> list[Pod]:
        return [pod for pods in self.clusters.values() for pod in pods.values()]

    @rule()
    def kueue_admits(self) -> None:
        if self.workload is not None and not self.workload.reserved and not self.workload.finished:
            self.change(admitted=True, reserved=True, evicted="", cluster_queue="all")

    @rule()
    def kueue_evicts(self) -> None:
        if self.workload is not None and self.workload.admitted:
            self.change(evicted="for a job of more priority")

    @rule()
    def somebody_deletes_the_workload(self) -> None:
        self.workload = None

    @invariant()
    def a_job_without_quota_has_no_devices(self) -> None:
        if self.workload is not None and not self.workload.reserved:
            assert not [pod for pod in self.pods() if pod.role != "head"]

    def teardown(self) -> None:
        self.generous = True
        super().teardown()
        if self.workload is not None:
            self.reconcile(None)
            self.reconcile(None)
            assert self.workload is None or self.workload.finished


def _active(status: RLJobStatus) -> bool:
    return not (holds(status, "Succeeded") or holds(status, "Failed"))


TestWorld, TestQueuedWorld = World.TestCase, QueuedWorld.TestCase
TestWorld.settings = TestQueuedWorld.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
)
