"""What each scheduler needs to place all pods of a job or none.

KubeRay makes the group of pods itself, when it was started for that scheduler; it reads labels of
the RayCluster. Kueue reads its own, and owns `suspend` of the RayCluster.
"""

from dataclasses import dataclass, field

from rljob_api.spec.scheduling import Scheduler, Scheduling

GANG_LABEL = "ray.io/gang-scheduling-enabled"
SCHEDULER_NAMES: dict[Scheduler, str] = {
    "volcano": "volcano",
    "scheduler-plugins": "scheduler-plugins-scheduler",
    "yunikorn": "yunikorn",
    "kai": "kai-scheduler",
}
"""schedulerName of the pods; the others leave it to the cluster."""
QUEUE_LABELS: dict[Scheduler, str] = {
    "volcano": "volcano.sh/queue-name",
    "kueue": "kueue.x-k8s.io/queue-name",
    "yunikorn": "yunikorn.apache.org/queue",
    "kai": "kai.scheduler/queue",
}
PRIORITY_LABELS: dict[Scheduler, str] = {
    "volcano": "ray.io/priority-class-name",
    "kueue": "kueue.x-k8s.io/priority-class",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """labels: of the RayCluster. scheduler_name, priority_class: of every pod, where given."""

    labels: dict[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None
    priority_class: str | None = None


def gang(scheduling: Scheduling, *, cluster: str) -> Gang:
    """How the pods of the RayCluster named `cluster` are placed. scheduling: passed the rules."""
    scheduler, labels = scheduling.scheduler, {}
    if scheduler in ("scheduler-plugins", "yunikorn"):
        labels[GANG_LABEL] = "true"
    if scheduler == "yunikorn":
        labels["yunikorn.apache.org/app-id"] = cluster
    if scheduling.queue is not None:
        labels[QUEUE_LABELS[scheduler]] = scheduling.queue
    if scheduling.priority_class is not None and scheduler in PRIORITY_LABELS:
        labels[PRIORITY_LABELS[scheduler]] = scheduling.priority_class
    return Gang(
        labels=labels,
        scheduler_name=SCHEDULER_NAMES.get(scheduler),
        # Kueue's classes are its own: no pod may name one.
        priority_class=None if scheduler == "kueue" else scheduling.priority_class,
    )
