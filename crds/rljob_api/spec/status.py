"""The status that the operator writes, which `kubectl get rljobs` shows. Read by the CRD generator."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.section import Section

Text = Annotated[str, Field(max_length=1024)]
InUrl = Annotated[str, Field(max_length=128, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A name that is used in URLs of the operator's requests to a job's head."""
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Reason = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z][A-Za-z0-9]*$")]


class Condition(Section):
    """One aspect of the job's state, as in metav1.Condition."""

    type: Reason
    """Name of the aspect, in CamelCase."""

    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""

    reason: Reason
    """Why, as one CamelCase word for programs."""

    message: Text = ""
    """Why, for people."""

    last_transition_time: Time
    """When `status` last changed."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The generation of the spec that this was observed for."""


class Progress(Section):
    """How far training is."""

    step: int = Field(ge=0)
    """Steps done."""

    total_steps: int = Field(ge=0)
    """Steps of the job."""

    reward: float | None = None
    """Mean reward of the last step."""

    tokens_per_second: int | None = Field(default=None, ge=0)
    """Prompt and response tokens a second over the last steps."""

    eta_seconds: int | None = Field(default=None, ge=0)
    """Seconds until the last step at the present pace."""


class LastCheckpoint(Section):
    """The newest complete checkpoint."""

    step: int = Field(ge=0)
    """Steps done when it was saved."""

    path: Text
    """Where it lies."""

    time: Time
    """When it was complete."""


class RayClusterStatus(Section):
    """The KubeRay cluster of the present attempt."""

    name: InUrl
    """Name of the RayCluster."""

    uid: Text | None = None
    """Its uid."""

    submission_id: InUrl | None = None
    """Id of the Ray job on it."""

    head: Text | None = None
    """The head's container that the driver was started in; another container has no driver."""


class Failure(Section):
    """Why an attempt ended."""

    attempt: int = Field(ge=0)
    """Number of the attempt."""

    reason: Reason
    """Why, as one CamelCase word for programs."""

    message: Text
    """Why, for people."""

    time: Time
    """When it was seen."""

    node: Text | None = None
    """Node, if the failure had one."""

    exit_code: int | None = None
    """Exit code of the process, if it had one."""


class FaultyChip(Section):
    """A chip with a warning or a fault, which a pod of the job had when this was observed."""

    node: Text
    """Its node."""

    chip: Text
    """Its name, such as Ascend910-3; `node` or `switch` where that has the fault."""

    level: Text
    """MindCluster's level of the fault, such as SeparateNPU."""

    code: Text = ""
    """Codes of the fault."""

    time: Time
    """When it was seen."""

    pod: Text
    """Uid of the pod that had the chip."""

    step: int = Field(ge=0)
    """Steps that were done then; a chip that warns is left after a checkpoint of these."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the fault: a report with another key is new."""
        return self.node, self.chip, self.level


class RLJobStatus(Section):
    """State of the job as the operator observed it."""

    observed_generation: int | None = Field(default=None, ge=0)
    """The generation of the spec that the status describes."""

    phase: Text | None = None
    """One word for people; programs read `conditions`."""

    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    """Aspects of the state, one per type."""

    start_time: Time | None = None
    """When the job started, or continued after a suspension; activeDeadlineSeconds counts from here."""

    completion_time: Time | None = None
    """When the job succeeded or failed."""

    attempt: int | None = Field(default=None, ge=0)
    """Number of the current attempt, from 0."""

    attempt_time: Time | None = None
    """When the current attempt started."""

    stepped_back_time: Time | None = None
    """When the job last moved behind others that need its devices, since no job had what it lacked."""

    progress_time: Time | None = None
    """When a step was last observed to end."""

    restarts: int | None = Field(default=None, ge=0)
    """Attempts that failed and were restarted."""

    progress: Progress | None = None
    """How far training is."""

    last_checkpoint: LastCheckpoint | None = None
    """The newest complete checkpoint."""

    devices: Text | None = None
    """Devices that are ready and requested, e.g. 8/16."""

    spare_nodes: Text | None = None
    """Spare nodes whose pods are ready and wait, and those requested, e.g. 1/2."""

    dock_data_path: Literal["shared", "tcp", "mixed"] | None = None
    """How rows reach the workers: through memory that a node's pods share, over TCP, or, with several nodes,
    by both (spec.dock.sharedMemory)."""

    rollout_replicas: int | None = Field(default=None, ge=0)
    """Devices that currently generate; `kubectl scale` sets spec.placement.rolloutDevices."""

    selector: Text | None = None
    """Labels of the pods with the job's devices, for autoscalers."""

    ray_cluster: RayClusterStatus | None = None
    """The KubeRay cluster of the current attempt."""

    dashboard_url: Annotated[Text | None, Field(alias="dashboardURL")] = None
    """Address of Ray's dashboard."""

    failures: list[Failure] = Field(
        default_factory=list,
        max_length=10,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """The last failures, the newest at the end."""

    faulty_chips: list[FaultyChip] = Field(
        default_factory=list,
        exclude_if=lambda chips: not chips,
        max_length=64,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Chips that pods of the job have or had, for as long as they are reported with a warning or a fault."""
