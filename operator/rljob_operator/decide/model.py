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
from rljob_operator.build.identity import Identity
from rljob_operator.driver.ray_jobs import RayJob

Role = Literal["head", "worker", "warehouse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the job. incarnation: of the Ray container, another after each restart in place.

    deleting_since: unix seconds, None while nobody deletes it. problem: why it does not run, as
    Kubernetes says it. disrupted: evicted, preempted or drained, which is nobody's fault.
    """

    name: str
    uid: str
    role: Role
    ready: bool
    incarnation: str = ""
    node: str = ""
    deleting_since: float | None = None
    problem: str = ""
    exit_code: int | None = None
    disrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The RayCluster. workers: worker pods that it asks for. refusal: what KubeRay or the quota says
    against its pods."""

    name: str
    uid: str
    deleting: bool = False
    workers: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAnswer:
    """What Ray says of the present attempt's submission. reached: False while the head does not answer;
    job: None where Ray does not know the submission. hiccup: it was not reached, but
    not for long yet."""

    reached: bool
    job: RayJob | None = None
    hiccup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One RLJob and all that belongs to it, as last seen.

    spec: None where `problems` say why. status: as stored. cluster: the one named in status, if it
    exists, with its `pods`; older: the job's other RayClusters, with `older_pods`. log: the driver's last
    lines, once it has failed. alarms: of its guards, None where it was not asked. poll_seconds: how often a
    running job is asked about. stop_seconds: how long a run that was told to stop may take for its
    checkpoint. stacks: what the driver said when the pass before asked it for its stacks, "" where it gave no
    answer; None where it was not asked.
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
    log: str = ""
    stacks: str | None = None
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

    workers: worker pods in place of the spec's number. leaving: those that go, where they become fewer."""

    cluster: str
    workers: int | None = None
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteCluster:
    """Delete a RayCluster with its pods."""

    cluster: str


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
class DeleteJob:
    """Delete the RLJob itself."""


Action = (
    MakeChildren
    | DeleteCluster
    | ReleaseWorkers
    | Submit
    | ScaleRollout
    | StopSubmission
    | AskStacks
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
