"""What each scheduler needs to place all pods of a job or none.

Of labels of the RayCluster, KubeRay makes the group of pods where it was started for that scheduler, and
Kueue takes the RayCluster for a workload. With the operator's own settings for Volcano and Kueue it has none:
the operator makes the PodGroup (`pod_group`) or the Workload (`kueue`) of the job itself.
"""

from dataclasses import dataclass, field

from rljob_api.spec.scheduling import PRIORITY_LABELS, QUEUE_LABELS, Scheduler, Scheduling
from rljob_operator.build.names import QUEUEING, Manifest, Role
from rljob_operator.settings import Settings

GANG_LABEL = "ray.io/gang-scheduling-enabled"
SCHEDULER_NAMES: dict[Scheduler, str] = {
    "volcano": "volcano",
    "scheduler-plugins": "scheduler-plugins-scheduler",
    "yunikorn": "yunikorn",
    "kai": "kai-scheduler",
}
"""schedulerName of the pods; the others leave it to the cluster."""
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
TASK_ANNOTATION = "volcano.sh/task-spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """labels: of the RayCluster. scheduler_name, priority_class: of every pod, where given. group: the
    PodGroup that the operator makes for them. suspends: whether the RayCluster is a workload of Kueue, which
    then deletes all of its pods at once."""

    labels: dict[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None
    priority_class: str | None = None
    group: str | None = None
    suspends: bool = False

    def annotations(self, role: Role) -> dict[str, str]:
        """Of the role's pods."""
        return {GROUP_ANNOTATION: self.group, TASK_ANNOTATION: role} if self.group else {}


def gang(scheduling: Scheduling, settings: Settings, *, cluster: str) -> Gang:
    """How the pods of the RayCluster named `cluster` are placed. scheduling: passed the rules."""
    scheduler, labels = scheduling.scheduler, {}
    if scheduler in ("scheduler-plugins", "yunikorn"):
        labels[GANG_LABEL] = "true"
    if scheduler == "yunikorn":
        labels["yunikorn.apache.org/app-id"] = cluster
    own = makes_group(scheduling, settings) or makes_workload(scheduling, settings)
    if scheduling.queue is not None and not own:
        labels[QUEUE_LABELS[scheduler]] = scheduling.queue
    if scheduling.priority_class is not None and scheduler in PRIORITY_LABELS and not own:
        labels[PRIORITY_LABELS[scheduler]] = scheduling.priority_class
    return Gang(
        labels=labels,
        scheduler_name=SCHEDULER_NAMES.get(scheduler),
        # Kueue's classes are its own: no pod may name one.
        priority_class=None if scheduler == "kueue" else scheduling.priority_class,
        group=cluster if makes_group(scheduling, settings) else None,
        suspends=scheduler == "kueue" and not own,
    )


def makes_group(scheduling: Scheduling, settings: Settings) -> bool:
    """Whether the operator makes the PodGroup of the job's pods."""
    return settings.volcano and scheduling.scheduler == "volcano"


def makes_workload(scheduling: Scheduling, settings: Settings) -> bool:
    """Whether the operator makes the job a Workload of Kueue."""
    return settings.kueue and scheduling.scheduler == "kueue"


def kept_labels(living: Manifest, wanted: Manifest) -> dict[str, str]:
    """Labels of a RayCluster that is there: which queue it waits in stays as it is."""
    own = {k: v for k, v in living["metadata"].get("labels", {}).items() if k in QUEUEING}
    others = {k: v for k, v in wanted["metadata"]["labels"].items() if k not in QUEUEING}
    return others | own


def is_queued_by_kueue(cluster: Manifest) -> bool:
    """Whether the RayCluster is itself a workload of Kueue."""
    return QUEUE_LABELS["kueue"] in cluster["metadata"].get("labels", {})
