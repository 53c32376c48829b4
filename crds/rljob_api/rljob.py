"""The RLJob resource: metadata, spec, status. Called by everything; imports pydantic alone."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.algorithms import GRPO
from rljob_api.base import Section
from rljob_api.engines import Flow, Placement, Resharding, Rollout, Update
from rljob_api.infrastructure import Accelerator, Checkpoint, Dock
from rljob_api.lifecycle import CleanupPolicy, FailurePolicy, Seconds
from rljob_api.pods import Image, PodTemplates
from rljob_api.scheduling import Scheduling
from rljob_api.workload import Batch, Data, Evaluation, Model, Reward

GROUP = "rljob.io"
VERSION = "v1alpha1"
KIND = "RLJob"

CLUSTER_ONLY = (
    "image", "scheduling", "pod_templates", "suspend", "backoff_limit", "active_deadline_seconds",
    "start_deadline_seconds", "progress_deadline_seconds", "ttl_seconds_after_finished",
    "cleanup_policy", "failure_policy",
)  # fmt: skip
"""Fields of the spec that only the operator reads: no run depends on them."""


class Metadata(Section):
    """Kubernetes metadata of the job."""

    name: str = Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    """Name of the job."""

    namespace: str | None = Field(default=None, max_length=63)
    """Namespace on a cluster."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Kubernetes labels."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Kubernetes annotations."""


class RLJobSpec(Section):
    """Everything that decides a run."""

    steps: int = Field(ge=1, le=10_000_000)
    """Training steps; each takes globalBatchSize prompts."""

    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Seed of everything random in the run."""

    model: Model
    """The policy to train."""

    data: Data
    """Where prompts come from."""

    rewards: list[Reward] = Field(
        min_length=1,
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    """Rewards, summed by weight."""

    algorithm: GRPO = GRPO()
    """The algorithm and its parameters."""

    batch: Batch
    """Sizes of a step."""

    rollout: Rollout = Rollout()
    """Generation of responses."""

    update: Update = Update()
    """Training of the policy."""

    resharding: Resharding = Resharding()
    """How weights go from the update layout to the rollout layout."""

    placement: Placement = Placement()
    """Which devices own which states."""

    flow: Flow = Flow()
    """How stages follow each other."""

    dock: Dock = Dock()
    """The distributed transfer dock."""

    accelerator: Accelerator = Accelerator()
    """The devices of the job."""

    checkpoint: Checkpoint = Checkpoint()
    """What is saved and when."""

    evaluation: Evaluation | None = None
    """Held-out evaluation; without it none is run."""

    image: Image | None = None
    """On a cluster: image of the job's pods; default: the operator's runtime image."""

    scheduling: Scheduling = Scheduling()
    """On a cluster: who places the job's pods."""

    pod_templates: PodTemplates = PodTemplates()
    """On a cluster: what differs from the operator's own pods."""

    suspend: bool = False
    """On a cluster: save a checkpoint, stop and give the devices back; false goes on from there."""

    backoff_limit: int = Field(default=3, ge=0, le=100)
    """On a cluster: how often a job that failed is started again."""

    active_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: the job fails after so long; time in suspension does not count."""

    start_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: an attempt fails that has made no first step so long after its pods were made."""

    progress_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: an attempt fails when no step ends for so long."""

    ttl_seconds_after_finished: Annotated[Seconds | None, Field(ge=0)] = None
    """On a cluster: the RLJob is deleted so long after its end; default: never."""

    cleanup_policy: CleanupPolicy = "DeleteWorkers"
    """On a cluster, at the end: `DeleteWorkers` frees the devices and keeps the head for its logs,
    `DeleteCluster` keeps nothing, `Retain` everything."""

    failure_policy: FailurePolicy | None = None
    """On a cluster: failures that are not simply counted against backoffLimit."""


class RLJob(Section):
    """Reinforcement-learning post-training of a language model as one resource."""

    api_version: Literal["rljob.io/v1alpha1"]
    kind: Literal["RLJob"]
    metadata: Metadata
    spec: RLJobSpec
