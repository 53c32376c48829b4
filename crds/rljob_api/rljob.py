"""The RLJob resource: metadata, spec, status. Called by everything; imports pydantic alone."""

from typing import Literal

from pydantic import Field

from rljob_api.algorithms import GRPO
from rljob_api.base import Section
from rljob_api.engines import Flow, Placement, Resharding, Rollout, Update
from rljob_api.infrastructure import Accelerator, Checkpoint, Dock
from rljob_api.workload import Batch, Data, Evaluation, Model, Reward

GROUP = "rljob.io"
VERSION = "v1alpha1"
KIND = "RLJob"


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


class RLJob(Section):
    """Reinforcement-learning post-training of a language model as one resource."""

    api_version: Literal["rljob.io/v1alpha1"]
    kind: Literal["RLJob"]
    metadata: Metadata
    spec: RLJobSpec
