"""What the operator observes of one RLJob, and the actions that it may take. Plain data.

`observe` fills an `Observation`, `decide` returns a `Decision`, and `apply` carries it out.
"""

from dataclasses import dataclass
from typing import Literal

from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.status import LastCheckpoint, Progress, RLJobStatus
from rljob_api.topology.elastic import RolloutReport
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_operator.build.identity import JobIdentity
from rljob_operator.driver.ray_jobs import RayJob
from rljob_operator.watch.fault_reports import ChipFault

Role = Literal["head", "worker", "warehouse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the job. incarnation: of the Ray container, which changes after each restart in place.

    deleting_since: unix seconds, None while it is not being deleted. problem: why it does not run, in
    Kubernetes' words. disrupted: evicted, preempted or drained, not failed. created: unix seconds. chips: as
    `Ascend910-3`; () if they are unknown. no_room: the scheduler found no node for it. moved: when it got a
    node, or was first refused one; unix seconds.
    """

    name: str
    uid: str
    role: Role
    ready: bool
    incarnation: str = ""
    node: str = ""
    created: float = 0.0
    chips: tuple[str, ...] = ()
    deleting_since: float | None = None
    problem: str = ""
    exit_code: int | None = None
    disrupted: bool = False
    no_room: bool = False
    moved: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The RayCluster. workers: worker pods that it requests. refusal: why KubeRay or the quota refuses its
    pods. outdated: its images are not those that this operator would use. avoided: nodes that its next worker
    pods avoid. suspended: Kueue, whose workload it is, removes its pods."""

    name: str
    uid: str
    deleting: bool = False
    suspended: bool = False
    workers: int = 0
    refusal: str = ""
    outdated: bool = False
    avoided: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAnswer:
    """Ray's answer about the current attempt's submission. reached: False while the head does not answer;
    job: None if Ray does not know the submission. hiccup: it was not reached, but only for a short time."""

    reached: bool
    job: RayJob | None = None
    hiccup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Kueue's view of the job. message: why it is not admitted, in Kueue's words. cluster_queue: the queue
    that admitted it. reserved: it holds quota. evicted: why it must return its quota, "" otherwise. finished:
    Kueue ignores it. outdated: the job's request has changed. pods_ready: as last reported to Kueue, None
    before. workers: worker pods that it holds quota for; requested: those that the job requests."""

    name: str
    deleting: bool = False
    admitted: bool = False
    reserved: bool = False
    evicted: str = ""
    finished: bool = False
    outdated: bool = False
    message: str = ""
    cluster_queue: str = ""
    pods_ready: bool | None = None
    workers: int = 0
    requested: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """What jobs that compete for the same devices need to know about each other.

    resource: of the devices. position: in line; smaller is earlier. needed: worker pods that it needs; bound:
    those of them with a node. devices: of all its worker pods on nodes. waits: it does not have all pods yet,
    and Kubernetes' own scheduler places them. is_held: it released its pods. refused: a worker pod found no
    room. requested_at: when it last requested its pods; moved: when one of them last got a node or was first
    refused one; stepped_back: when it last let others try; unix seconds.
    """

    namespace: str
    name: str
    resource: str
    position: tuple[str, float, str]
    needed: int
    bound: int
    devices_per_pod: int
    devices: int
    waits: bool
    is_held: bool
    refused: bool
    requested_at: float
    moved: float
    stepped_back: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One RLJob and everything that belongs to it, as last observed.

    spec: None if `problems` say why; for a job that Kueue admitted, as the admitted pods allow. status: as
    stored. cluster: the one named in status, if it exists, with its `pods`; older: the job's other
    RayClusters, with `older_pods`. log: the driver's last lines, once it has failed. alarms: of its guards,
    None if they were not read. replicas: that train, if they may be fewer. poll_seconds: how often a running
    job is polled. stop_seconds: how long a stopping run may take for its checkpoint.

    stacks: the driver's answer when the previous pass requested its stacks, "" without an answer; None if not
    requested. refused: why the API server, or the operator, did not carry out the previous decision. faults:
    of chips on nodes of the job's pods, None if reports are not read; faulty_nodes: all nodes with a chip
    that warns or stops. rivals: other jobs that compete for the same devices, if it lacks some. queued: it
    runs only while Kueue has admitted its Workload. workload: None if there is none.
    """

    identity: JobIdentity
    created: float
    deleting: bool
    spec: RLJobSpec | None
    problems: tuple[Problem, ...]
    status: RLJobStatus
    cluster: Cluster | None
    pods: tuple[Pod, ...]
    ray: RayAnswer
    older: tuple[Cluster, ...] = ()
    older_pods: tuple[Pod, ...] = ()
    progress: Progress | None = None
    checkpoint: LastCheckpoint | None = None
    rollout: RolloutReport | None = None
    data_path: Literal["shared", "tcp", "mixed"] | None = None
    alarms: tuple[AlarmReport, ...] | None = None
    replicas: ReplicasReport | None = None
    log: str = ""
    stacks: str | None = None
    refused: str = ""
    faults: tuple[ChipFault, ...] | None = None
    faulty_nodes: tuple[str, ...] = ()
    rivals: tuple[DeviceClaim, ...] = ()
    queued: bool = False
    workload: Workload | None = None
    poll_seconds: float = 5.0
    stop_seconds: float = 600.0

    def of_role(self, role: Role) -> list[Pod]:
        """Return the current cluster's pods of one role."""
        return [pod for pod in self.pods if pod.role == role]

    @property
    def head(self) -> Pod | None:
        """Return the head that is not being deleted."""
        return next((p for p in self.of_role("head") if p.deleting_since is None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeChildren:
    """Apply the job's children; the RayCluster under this name.

    workers: worker pods instead of the spec's number. leaving: those that are removed if they become fewer.
    avoid: nodes that worker pods created from now on avoid.
    """

    cluster: str
    workers: int | None = None
    leaving: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCluster:
    """Delete a RayCluster with its pods."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete a pod of the current cluster, which KubeRay replaces. force: even if its node does not confirm
    that it has ended."""

    pod: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorkers:
    """Keep the head for its logs, release the devices."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Start the attempt's driver once."""

    submission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRollout:
    """Set how many devices the driver lets generate."""

    rollout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCheckpoint:
    """Request a checkpoint from the driver after the current step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSubmission:
    """Stop the driver with a checkpoint."""

    submission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStacks:
    """Let the driver write the stacks of all processes before it is ended for a deadline; the next pass has
    its answer."""

    deadline: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeWorkload:
    """Request the job's pods from Kueue, or its changed request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorkload:
    """Withdraw the job's request from Kueue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQuota:
    """Report to Kueue that the pods of an evicted job are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPods:
    """Report to Kueue whether all pods are ready, and how many worker pods are still needed if those are
    fewer than it holds quota for."""

    ready: bool
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishWorkload:
    """Report to Kueue that the job has ended and holds no devices."""

    succeeded: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the RLJob itself."""


Action = (
    MakeChildren
    | DeleteCluster
    | DeletePod
    | ReleaseWorkers
    | Submit
    | ScaleRollout
    | AskCheckpoint
    | StopSubmission
    | AskStacks
    | MakeWorkload
    | DeleteWorkload
    | ReleaseQuota
    | TellPods
    | FinishWorkload
    | DeleteJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """A Kubernetes event about the job."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, in order: `status` first (it names what the actions will do), then `actions`.

    requeue_seconds: seconds until the next pass if nothing changes; None for none.
    """

    status: RLJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[JobEvent, ...] = ()
    requeue_seconds: float | None = None
