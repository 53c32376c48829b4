"""On a cluster: the scheduler that places the job's pods, all or none of them, and the queue in which they
wait."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.section import Section

Scheduler = Literal["default", "volcano", "kueue", "scheduler-plugins", "yunikorn", "kai"]
QUEUED: tuple[Scheduler, ...] = ("volcano", "kueue", "yunikorn", "kai")
"""Schedulers that have queues."""
QUEUE_NEEDED: tuple[Scheduler, ...] = ("kueue", "kai")
"""Schedulers that place nothing without a queue."""
QUEUE_LABELS: dict[Scheduler, str] = {
    "volcano": "volcano.sh/queue-name",
    "kueue": "kueue.x-k8s.io/queue-name",
    "yunikorn": "yunikorn.apache.org/queue",
    "kai": "kai.scheduler/queue",
}
"""Label in which each scheduler reads the queue."""
PRIORITY_LABELS: dict[Scheduler, str] = {
    "volcano": "ray.io/priority-class-name",
    "kueue": "kueue.x-k8s.io/priority-class",
}
"""Label in which each scheduler reads the priority class."""


class Scheduling(Section):
    """On a cluster: the scheduler that places the job's pods, all or none of them."""

    scheduler: Scheduler = "default"
    """`default` places pod by pod; if jobs lack room for some pods, the operator lets one of them keep its
    own. The others place all pods of the job together, and must be installed on the cluster. volcano and
    kueue must be enabled in the operator (volcano.enabled, kueue.enabled of its chart) or in KubeRay, the
    others in KubeRay."""

    queue: str | None = Field(
        default=None, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
    )
    """Queue that the job waits in; kueue and kai need one, default and scheduler-plugins have none."""

    priority_class: str | None = Field(
        default=None, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
    )
    """PriorityClass of the job's pods; with kueue the WorkloadPriorityClass of the job."""

    min_rollout_devices: int | None = Field(default=None, ge=1, le=100_000)
    """With kueue: the fewest devices that generate with which the job may be admitted if there is no quota
    for placement.rolloutDevices. Default: it waits until there is."""
