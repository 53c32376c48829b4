"""The RLJob resource: metadata, spec, status. Imported everywhere; imports only pydantic."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field

from rljob_api.spec.algorithms import DEFAULT, SECTIONS, Algorithm
from rljob_api.spec.critic import Critic
from rljob_api.spec.elastic import Elastic
from rljob_api.spec.engines import Flow, Placement, Resharding, Rollout, Update
from rljob_api.spec.evaluation import Evaluation
from rljob_api.spec.guards import Guards, Stragglers
from rljob_api.spec.infrastructure import Accelerator, Checkpoint, Dock
from rljob_api.spec.lifecycle import CleanupPolicy, FailurePolicy, Seconds
from rljob_api.spec.pods import Image, PodTemplates
from rljob_api.spec.profile import Profile
from rljob_api.spec.reward_services import RewardModel
from rljob_api.spec.scheduling import Scheduling
from rljob_api.spec.section import Section
from rljob_api.spec.teacher import Teacher
from rljob_api.spec.tools import DEFAULT_TURNS
from rljob_api.spec.tracking import Tracking
from rljob_api.spec.workload import Batch, Data, Model, Reward

GROUP = "rljob.io"
KIND = "RLJob"
ApiVersion = Literal["rljob.io/v1beta1", "rljob.io/v1alpha1"]
"""Versions that a job may be written in, newest first. Their schemas are the same."""
VERSIONS = tuple(version.rpartition("/")[2] for version in get_args(ApiVersion))
VERSION = "v1alpha1"
"""Version that is stored, and that the operator and the commands use; the previous release supports it."""

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
    """Kubernetes labels; on a cluster, the job's RayCluster has them, too."""

    annotations: dict[str, str] = Field(default_factory=dict)
    """Kubernetes annotations; on a cluster, the job's RayCluster has them, too."""


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
        default=[],
        max_length=16,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    """Rewards, summed by weight: one at least, none with data.preferences."""

    algorithm: Algorithm = SECTIONS[DEFAULT](name=DEFAULT)
    """The algorithm and its parameters."""

    batch: Batch
    """Sizes of a step."""

    rollout: Rollout = Rollout()
    """Generation of responses."""

    update: Update = Update()
    """Training of the policy."""

    critic: Critic | None = Field(default=None, exclude_if=lambda critic: critic is None)
    """Training of the value model, for algorithms with one; without it, that of `critic: {}`."""

    teacher: Teacher | None = Field(default=None, exclude_if=lambda teacher: teacher is None)
    """The model that distillation learns from."""

    resharding: Resharding = Resharding()
    """How weights move from the update layout to the rollout layout."""

    placement: Placement = Placement()
    """Which devices belong to which role."""

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

    guards: Guards = Field(default=Guards(), exclude_if=lambda guards: guards == Guards())
    """Alarms on the run's own steps, and what follows."""

    stragglers: Stragglers = Field(
        default=Stragglers(), exclude_if=lambda stragglers: stragglers == Stragglers()
    )
    """Devices that are slower than their peers, and what follows."""

    elastic: Elastic | None = Field(default=None, exclude_if=lambda elastic: elastic is None)
    """With how few devices the run continues while others are missing; without it, it waits for them."""

    profile: Profile | None = Field(default=None, exclude_if=lambda profile: profile is None)
    """Steps that are recorded by torch's profiler; without it none is."""

    tracking: Tracking | None = Field(default=None, exclude_if=lambda tracking: tracking is None)
    """Where else metrics go: TensorBoard, Weights & Biases, MLflow."""

    image: Image | None = None
    """On a cluster: image of the job's pods; default: the operator's runtime image."""

    scheduling: Scheduling = Scheduling()
    """On a cluster: the scheduler that places the job's pods."""

    pod_templates: PodTemplates = PodTemplates()
    """On a cluster: what differs from the operator's own pods."""

    suspend: bool = False
    """On a cluster: save a checkpoint, stop and release the devices; false resumes from there."""

    backoff_limit: int = Field(default=3, ge=0, le=100)
    """On a cluster: how often a failed job is restarted."""

    active_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: the job fails after this time, which starts again when it resumes from suspension."""

    start_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: the job fails if the pods of an attempt are not all ready after this time."""

    progress_deadline_seconds: Annotated[Seconds | None, Field(ge=1)] = None
    """On a cluster: an attempt fails if no step ends for this long. Use more than flow.stageTimeoutSeconds,
    after which a run fails without the operator."""

    ttl_seconds_after_finished: Annotated[Seconds | None, Field(ge=0)] = None
    """On a cluster: the RLJob is deleted this long after its end; default: never."""

    cleanup_policy: CleanupPolicy = "DeleteWorkers"
    """On a cluster, at the end: `DeleteWorkers` frees the devices and keeps the head for its logs,
    `DeleteCluster` keeps nothing, `Retain` everything."""

    failure_policy: FailurePolicy | None = None
    """On a cluster: failures that are not simply counted against backoffLimit."""

    @property
    def reward_model(self) -> RewardModel | None:
        """Return the reward model, if a reward has one."""
        return next((reward.model for reward in self.rewards if reward.model is not None), None)

    @property
    def states(self) -> tuple[str, ...]:
        """Return the worker states of the job, in the order in which a sample passes them."""
        states = self.algorithm.params.states
        if self.has_pairs:
            compare = ("compare",) if self.evaluation is not None else ()
            return ("reference", *compare, "update")
        if self.reward_model is None:
            return states
        index = states.index("reward")
        return (*states[:index], "reward-model", *states[index:])

    @property
    def has_pairs(self) -> bool:
        """Return whether responses come with the data, in pairs of which one is preferred."""
        return self.data.preferences is not None

    @property
    def has_turns(self) -> bool:
        """Return whether samples have several turns, with tokens between them that the policy did not
        draw."""
        return bool(self.rollout.tools) or self.has_outcomes

    @property
    def has_outcomes(self) -> bool:
        """Return whether a sample ends with an outcome: that of its game, or of its agent's session."""
        return self.data.environment is not None or self.rollout.agent is not None

    @property
    def most_turns(self) -> int:
        """Return the most turns of a sample."""
        return (self.rollout.max_turns or DEFAULT_TURNS) if self.has_turns else 1

    @property
    def has_critic(self) -> bool:
        """Return whether the algorithm trains a value model."""
        return "critic" in self.algorithm.params.states

    @property
    def has_teacher(self) -> bool:
        """Return whether the algorithm learns from another model's log-probs."""
        return "teacher" in self.algorithm.params.states

    @property
    def restricted(self) -> list[str]:
        """Return what runs a policy's text in restricted processes, as "reward NAME" and "tool NAME"."""
        rewards = (f"reward {reward.name}" for reward in self.rewards if reward.is_restricted)
        tools = (f"tool {tool.name}" for tool in self.rollout.tools if tool.type == "python")
        return [*rewards, *tools]

    def of_critic(self) -> Self:
        """Return the spec with the critic in the policy's place, for the rules and plans of training."""
        critic = self.critic or Critic()
        return self.model_copy(update={"update": critic.as_update(self.update)})


class RLJob(Section):
    """Reinforcement-learning post-training of a language model as one resource."""

    api_version: ApiVersion
    kind: Literal["RLJob"]
    metadata: Metadata
    spec: RLJobSpec
