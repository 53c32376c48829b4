"""What each scheduler needs to place all pods of a job or none.

From labels of the RayCluster, KubeRay creates the group of pods if it was started for that scheduler, and
Kueue manages the RayCluster as a workload. With the operator's own settings for Volcano and Kueue the
RayCluster has no such labels: the operator creates the job's PodGroup (`pod_group`) or Workload (`kueue`).
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
"""schedulerName of the pods; other schedulers use the cluster's default."""
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
TASK_ANNOTATION = "volcano.sh/task-spec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """How the pods of a job are placed together. labels: of the RayCluster. scheduler_name, priority_class:
    of every pod, if set. group: the PodGroup that the operator makes for them. suspends: the RayCluster is a
    workload of Kueue, which then deletes all of its pods together."""

    labels: dict[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None
    priority_class: str | None = None
    group: str | None = None
    suspends: bool = False

    def annotations(self, role: Role) -> dict[str, str]:
        """Return the annotations of the role's pods."""
        return {GROUP_ANNOTATION: self.group, TASK_ANNOTATION: role} if self.group else {}


def gang(scheduling: Scheduling, settings: Settings, *, cluster: str) -> Gang:
    """Return how the pods of the RayCluster named `cluster` are placed. scheduling: passed the rules."""
    scheduler, labels = scheduling.scheduler, {}
    if scheduler in ("scheduler-plugins", "yunikorn"):
        labels[GANG_LABEL] = "true"
    if scheduler == "yunikorn":
        labels["yunikorn.apache.org/app-id"] = cluster
    is_made_here = makes_group(scheduling, settings) or makes_workload(scheduling, settings)
    if scheduling.queue is not None and not is_made_here:
        labels[QUEUE_LABELS[scheduler]] = scheduling.queue
    if scheduling.priority_class is not None and scheduler in PRIORITY_LABELS and not is_made_here:
        labels[PRIORITY_LABELS[scheduler]] = scheduling.priority_class
    return Gang(
        labels=labels,
        scheduler_name=SCHEDULER_NAMES.get(scheduler),
        # Kueue's classes are its own: no pod may name one.
        priority_class=None if scheduler == "kueue" else scheduling.priority_class,
        group=cluster if makes_group(scheduling, settings) else None,
        suspends=scheduler == "kueue" and not is_made_here,
    )


def makes_group(scheduling: Scheduling, settings: Settings) -> bool:
    """Return whether the operator makes the PodGroup of the job's pods."""
    return settings.volcano and scheduling.scheduler == "volcano"


def makes_workload(scheduling: Scheduling, settings: Settings) -> bool:
    """Return whether the operator makes a Workload of Kueue for the job."""
    return settings.kueue and scheduling.scheduler == "kueue"


def kept_labels(living: Manifest, desired: Manifest) -> dict[str, str]:
    """Return the labels of an existing RayCluster: it stays in its queue."""
    queueing = {k: v for k, v in living["metadata"].get("labels", {}).items() if k in QUEUEING}
    others = {k: v for k, v in desired["metadata"]["labels"].items() if k not in QUEUEING}
    return others | queueing


def is_queued_by_kueue(cluster: Manifest) -> bool:
    """Return whether the RayCluster is a workload of Kueue."""
    return QUEUE_LABELS["kueue"] in cluster["metadata"].get("labels", {})
