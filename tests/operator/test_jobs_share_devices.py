"""Jobs that want the same devices, on nodes where a scheduler binds pod by pod in any order.

Nodes, KubeRay, scheduler and drivers are simulated; what the operator decides is real. It dies now and then
between a status and the actions that follow it.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from cluster_jobs import make_job
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.status import RLJobStatus
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import holds
from rljob_operator.decide.model import (
    Action,
    Cluster,
    DeleteCluster,
    DeviceClaim,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
    ReleaseWorkers,
    Submit,
)
from rljob_operator.decide.turns import TURN_SECONDS, claim_of
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus

START = 1_000_000.0
TICK_SECONDS = 10.0
ENDING_SECONDS = 20.0  # of a pod that is deleted
SMALL = make_job().spec


@dataclass(frozen=True, slots=True)
class Node:
    """devices: that it offers. since: seconds until nobody else has them."""

    name: str
    devices: int
    since: float


@dataclass(slots=True)
class Job:
    """One RLJob. nodes: names of those that its pods may go to. begins, runs: seconds."""

    name: str
    wanted: int
    devices: int
    nodes: frozenset[str]
    begins: float
    runs: float
    spec: RLJobSpec = field(init=False)
    status: RLJobStatus = field(default_factory=RLJobStatus)
    cluster: str | None = None
    workers: int = 0
    pods: list[Pod] = field(default_factory=list)
    running_since: float | None = None
    might_fit_since: float | None = None

    def __post_init__(self) -> None:
        asked = {"nodes": self.wanted, "devices_per_node": self.devices}
        accelerator = SMALL.accelerator.model_copy(update=asked)
        self.spec = SMALL.model_copy(update={"accelerator": accelerator})

    @property
    def succeeded(self) -> bool:
        return holds(self.status, "Succeeded")

    @property
    def held(self) -> bool:
        return holds(self.status, "Held")


class World:
    """Nodes and jobs; `tick` lets everybody do something once."""

    def __init__(self, nodes: list[Node], jobs: list[Job], random: Random) -> None:
        self.nodes, self.jobs, self.random = nodes, jobs, random
        self.now, self.names = START, 0
        self.claims: dict[str, DeviceClaim | None] = {}

    def tick(self) -> None:
        self.now += TICK_SECONDS
        for job in self.jobs:
            self.kuberay(job)
        self.schedule()
        there = [job for job in self.jobs if self.now >= START + job.begins]
        for job in self.random.sample(there, len(there)):
            self.reconcile(job)

    def kuberay(self, job: Job) -> None:
        """Pods that are to go end after a while; as many workers as the RayCluster asks for."""
        ended = self.now - ENDING_SECONDS
        job.pods = [p for p in job.pods if p.deleting_since is None or p.deleting_since > ended]
        living = [p for p in job.pods if p.deleting_since is None]
        roles = [p.role for p in living]
        wanted = {"head": 1, "worker": job.workers, "warehouse": job.wanted if job.workers else 0}
        for role, count in wanted.items() if job.cluster else ():
            for _ in range(count - roles.count(role)):  # type: ignore[arg-type]
                self.names += 1
                name, ready = f"{role}-{self.names}", role != "worker"
                job.pods.append(Pod(name=name, uid=name, role=role, ready=ready, incarnation=name))  # type: ignore[arg-type]
        surplus = roles.count("worker") - job.workers
        for pod in [p for p in living if p.role == "worker"][: max(0, surplus)]:
            self.change(job, pod, ready=False, deleting_since=self.now)

    def schedule(self) -> None:
        """Bind pods one by one in any order, each to any node with room."""
        pending = [(job, pod) for job in self.jobs for pod in job.pods if self.is_pending(pod)]
        self.random.shuffle(pending)
        for job, pod in pending:
            nodes = self.room(job)
            if nodes:
                node = self.random.choice(nodes).name
                self.change(job, pod, node=node, ready=True, no_room=False, moved=self.now)
            elif not pod.no_room:
                self.change(job, pod, no_room=True, moved=self.now)

    def is_pending(self, pod: Pod) -> bool:
        return pod.role == "worker" and not pod.node and pod.deleting_since is None

    def room(self, job: Job) -> list[Node]:
        """Nodes that have room for another pod of the job, of which a node takes one."""
        there = {p.node for p in job.pods if p.deleting_since is None}
        return [
            node
            for node in self.nodes
            if node.name in job.nodes
            and node.name not in there
            and self.now >= START + node.since
            and node.devices - self.used(node) >= job.devices
        ]

    def used(self, node: Node) -> int:
        return sum(job.devices for job in self.jobs for p in job.pods if p.node == node.name)

    def could_run_alone(self, job: Job) -> bool:
        fit = [n for n in self.nodes if n.name in job.nodes and n.devices >= job.devices]
        return len(fit) >= job.wanted

    def reconcile(self, job: Job) -> None:
        """A pass over the job; of the others it knows what their last passes saw."""
        was_held, seen = job.held, self.observed(job)
        others = [other for other in self.jobs if other is not job]
        for other in others:
            self.claims.setdefault(other.name, claim_of(self.observed(other)))
        rivals = [claim for other in others if (claim := self.claims[other.name])]
        decision = decide(replace(seen, rivals=tuple(rivals)), self.now)
        dies = self.random.random() < 0.1
        if dies:
            self.claims.clear()
        job.status = decision.status
        for act in [partial(self.act, job, action) for action in decision.actions][
            : 0 if dies else None
        ]:
            act()
        self.claims[job.name] = claim_of(replace(seen, status=decision.status))
        if job.held and not was_held:
            lacking = sum(self.is_pending(pod) for pod in job.pods)
            assert len(self.room(job)) < lacking, f"{job.name} is held, and there is room for it"

    def observed(self, job: Job) -> Observation:
        return Observation(
            identity=JobIdentity(namespace="team", name=job.name, uid=job.name, generation=1),
            created=START + job.begins,
            deleting=False,
            spec=job.spec,
            problems=(),
            status=job.status,
            cluster=Cluster(name=job.cluster, uid="c", workers=job.workers)
            if job.cluster
            else None,
            pods=tuple(job.pods),
            ray=self.answer(job),
        )

    def answer(self, job: Job) -> RayAnswer:
        if job.running_since is None:
            return RayAnswer(reached=True)
        done = self.now - job.running_since >= job.runs
        status = RayJobStatus.SUCCEEDED if done else RayJobStatus.RUNNING
        return RayAnswer(reached=True, job=RayJob(status=status))

    def act(self, job: Job, action: Action) -> None:
        match action:
            case MakeChildren(cluster=name):
                job.cluster, job.workers = name, job.wanted
            case ReleaseWorkers():
                job.workers = 0
            case DeleteCluster():
                raise AssertionError("no cluster is to go")
            case Submit():
                bound = [p for p in job.pods if p.role == "worker" and p.ready]
                assert len(bound) == job.wanted == job.workers, "a driver without its devices"
                job.running_since = job.running_since or self.now

    def change(self, job: Job, pod: Pod, **fields: object) -> None:
        job.pods[job.pods.index(pod)] = replace(pod, **fields)  # type: ignore[arg-type]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to five nodes and six jobs, some of which fit nowhere."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=5))
    later = st.sampled_from([0.0, 0.0, 0.0, 700.0])
    nodes = [Node(f"node-{i}", size, draw(later)) for i, size in enumerate(sizes)]
    names = [node.name for node in nodes]
    some = st.one_of(st.just(names), st.lists(st.sampled_from(names), unique=True))
    jobs = [
        Job(
            name=f"job-{number}",
            wanted=draw(st.integers(1, len(nodes) + 1)),
            devices=draw(st.sampled_from([1, 1, 2, 4])),
            nodes=frozenset(draw(some)),
            begins=draw(st.sampled_from([0.0, 0.0, 20.0, 400.0])),
            runs=draw(st.sampled_from([10.0, 500.0])),
        )
        for number in range(draw(st.integers(2, 6)))
    ]
    return World(nodes, jobs, Random(draw(st.integers(0, 2**32))))


@given(world=worlds())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_job_that_can_ever_fit_runs_to_its_end_and_none_is_held_that_fits(world):
    fitting = [job for job in world.jobs if world.could_run_alone(job)]
    turns = len(world.jobs) + 1
    most_seconds = turns * (500.0 + 2 * turns * TURN_SECONDS)

    while not all(job.succeeded for job in fitting):
        world.tick()
        for job in world.jobs:
            fits = job.held and len(world.room(job)) >= job.wanted
            job.might_fit_since = (job.might_fit_since or world.now) if fits else None
            waits = world.now - (job.might_fit_since or world.now)
            assert waits <= turns * TURN_SECONDS, f"{job.name} is held, and fits for {waits} s"
        late = [job.name for job in fitting if not job.succeeded]
        assert world.now - START < most_seconds, f"not done: {late}"

    assert {job.status.restarts or 0 for job in world.jobs} == {0}
    assert [job.name for job in world.jobs if job.status.failures] == []
