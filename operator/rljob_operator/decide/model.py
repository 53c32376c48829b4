"""What the operator sees of one RLJob, and what it may do about it. Plain data.

`observe` fills `Observed`, `decide` answers with a `Decision`, `apply` carries it out.
"""

from dataclasses import dataclass
from typing import Literal

from rljob_api.spec.guards import AlarmReport
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.status import LastCheckpoint, Progress, RLJobStatus
from rljob_api.topology.elastic import RolloutReport
from rljob_api.topology.fewer_replicas import ReplicasReport
from rljob_operator.build.identity import Identity
from rljob_operator.driver.ray_jobs import RayJob
from rljob_operator.watch.fault_reports import ChipFault

Role = Literal["head", "worker", "warehouse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the job. incarnation: of the Ray container, another after each restart in place.

    deleting_since: unix seconds, None while nobody deletes it. problem: why it does not run, as
    Kubernetes says it. disrupted: evicted, preempted or drained, which is nobody's fault. created: unix
    seconds. chips: as `Ascend910-3`; () where nobody says which it has. no_room: the scheduler found no node
    for it. moved: when it got a node, or was first refused one; unix seconds.
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
    """The RayCluster. workers: worker pods that it asks for. refusal: what KubeRay or the quota says
    against its pods. outdated: its images are not those that this operator would give it. avoided: nodes that
    its next worker pods keep off. suspended: Kueue, whose workload it is, takes its pods away."""

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
    """What Ray says of the present attempt's submission. reached: False while the head does not answer;
    job: None where Ray does not know the submission. hiccup: it was not reached, but
    not for long yet."""

    reached: bool
    job: RayJob | None = None
    hiccup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What Kueue says of the job. told: why it is not admitted, in Kueue's words. cluster_queue: that
    admitted it. reserved: it holds quota. evicted: why it is to give that back, "" while it is not. finished:
    Kueue looks at it no more. outdated: the job asks for something else by now. pods_ready: what Kueue was
    told, None before. workers: worker pods that it holds quota for; wanted: those that the job asks for.
    """

    name: str
    deleting: bool = False
    admitted: bool = False
    reserved: bool = False
    evicted: str = ""
    finished: bool = False
    outdated: bool = False
    told: str = ""
    cluster_queue: str = ""
    pods_ready: bool | None = None
    workers: int = 0
    wanted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What jobs that want the same devices are to know of each other.

    resource: of the devices. place: in line; the smaller is before. wanted: worker pods that it needs; bound:
    those of them with a node. devices: of all its worker pods on nodes. waits: it has not got all pods yet,
    and Kubernetes' own scheduler places them. held: it gave its pods back. refused: a worker pod found no
    room. asked: when it last asked for its pods, moved: when one of them last got a node or was first refused
    one, stepped_back: when it last let others try; unix seconds.
    """

    namespace: str
    name: str
    resource: str
    place: tuple[str, float, str]
    wanted: int
    bound: int
    devices_per_pod: int
    devices: int
    waits: bool
    held: bool
    refused: bool
    asked: float
    moved: float
    stepped_back: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One RLJob and all that belongs to it, as last seen.

    spec: None where `problems` say why; of a job that Kueue admitted, as the admitted pods allow. status: as
    stored. cluster: the one named in status, if it exists, with its `pods`; older: the job's other
    RayClusters, with `older_pods`. log: the driver's last lines, once it has failed. alarms: of its guards,
    None where it was not asked. replicas: that train, where they may be fewer. poll_seconds: how often a
    running job is asked about. stop_seconds: how long a run that was told to stop may take for its
    checkpoint. stacks: what the driver said when the pass before
    asked it for its stacks, "" where it gave no answer; None where it was not asked. refused: why the API
    server, or the operator, did not do what the pass before decided. faults: of chips on
    nodes of the job's pods, None where nobody reads the reports; faulty_nodes: all nodes with a chip that
    warns or stops. rivals: other jobs that want the same devices, where it lacks some. queued: whether it
    runs only while Kueue has admitted its Workload. workload: as it is, None where there is none.
    """

    identity: Identity
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
    rivals: tuple[Claim, ...] = ()
    queued: bool = False
    workload: Workload | None = None
    poll_seconds: float = 5.0
    stop_seconds: float = 600.0

    def of_role(self, role: Role) -> list[Pod]:
        """The present cluster's pods of one role."""
        return [pod for pod in self.pods if pod.role == role]

    @property
    def head(self) -> Pod | None:
        """The head that is not being deleted."""
        return next((p for p in self.of_role("head") if p.deleting_since is None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeChildren:
    """Apply the job's children; the RayCluster under this name.

    workers: worker pods in place of the spec's number. leaving: those that go, where they become fewer.
    avoid: nodes that worker pods made from now on keep off."""

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
    """Delete a pod of the present cluster, for which KubeRay makes another. force: although its node does not
    say that it has ended."""

    pod: str
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseWorkers:
    """Keep the head for its logs, give the devices back."""

    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Start the attempt's driver, once."""

    submission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRollout:
    """Tell the driver how many devices shall generate."""

    rollout: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCheckpoint:
    """Tell the driver to save after the step that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSubmission:
    """Ask the driver to checkpoint and end."""

    submission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStacks:
    """Let the driver write everybody's stacks before it is ended for a deadline; the next pass has its
    answer."""

    deadline: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeWorkload:
    """Ask Kueue for the job's pods, or for what it asks for by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorkload:
    """Ask Kueue for nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseQuota:
    """Tell Kueue that the pods of an evicted job are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TellPods:
    """Tell Kueue whether all pods are ready, and how many worker pods are still needed where those are fewer
    than it holds quota for."""

    ready: bool
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishWorkload:
    """Tell Kueue that the job has ended and holds no devices."""

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
class Event:
    """A Kubernetes event about the job."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, in order: `status` first (it names what the actions will do), then `actions`.

    again: seconds until the job must be looked at although nothing changes; None never.
    """

    status: RLJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    again: float | None = None
