"""On a cluster: who places the job's pods, all of them or none, and in which queue they wait."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.section import Section

Scheduler = Literal["default", "volcano", "kueue", "scheduler-plugins", "yunikorn", "kai"]
QUEUED: tuple[Scheduler, ...] = ("volcano", "kueue", "yunikorn", "kai")
"""Those that know queues."""
QUEUE_NEEDED: tuple[Scheduler, ...] = ("kueue", "kai")
"""Those that place nothing without one."""
QUEUE_LABELS: dict[Scheduler, str] = {
    "volcano": "volcano.sh/queue-name",
    "kueue": "kueue.x-k8s.io/queue-name",
    "yunikorn": "yunikorn.apache.org/queue",
    "kai": "kai.scheduler/queue",
}
"""Where each scheduler reads the queue."""
PRIORITY_LABELS: dict[Scheduler, str] = {
    "volcano": "ray.io/priority-class-name",
    "kueue": "kueue.x-k8s.io/priority-class",
}
"""Where it reads the class."""


class Scheduling(Section):
    """On a cluster: who places the job's pods, all of them or none."""

    scheduler: Scheduler = "default"
    """`default` places pod by pod, and of jobs that lack room for some pods the operator lets one keep
    its own; the others place all pods of the job at once, and must be installed on the cluster. volcano
    and kueue must be known to the operator (volcano.enabled, kueue.enabled of its chart) or to KubeRay,
    the others to KubeRay."""

    queue: str | None = Field(
        default=None, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    )
    """Queue that the job waits in; kueue and kai need one, default and scheduler-plugins have none."""

    priority_class: str | None = Field(
        default=None, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
    )
    """PriorityClass of the job's pods; with kueue the WorkloadPriorityClass of the job."""

    min_rollout_devices: int | None = Field(default=None, ge=1, le=100_000)
    """With kueue: devices that generate at the least, with which the job may be admitted where there is no
    quota for placement.rolloutDevices. Default: it waits until there is."""
