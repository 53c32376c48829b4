"""What the parameters of every policy-gradient algorithm have, and how an algorithm names its needs.

An algorithm's file subclasses `PolicyParams`; `states`, `fields` and `scalars` say which states start and
which columns its update reads. Fields that several algorithms have with other defaults are types here.
"""

from typing import Annotated, Literal, Self

from pydantic import Field

from rljob_api.spec.algorithms.sampling import BatchReweighting, SampleFilter
from rljob_api.spec.section import Section

ClipLow = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="Lower clip bound ε of the ratio: the ratio is clipped at 1 − clipLow.",
    ),
]
ClipHigh = Annotated[
    float,
    Field(
        gt=0,
        le=10,
        description="Upper clip bound ε of the ratio: the ratio is clipped at 1 + clipHigh; DAPO uses 0.28.",
    ),
]
LossAggregation = Annotated[
    Literal["token-mean", "sequence-mean", "sequence-sum"],
    Field(
        description="Mean over all response tokens of the global batch; over sequences of their token "
        "means; or over sequences of their token sums, divided by lengthDivisor (Dr.GRPO).",
    ),
]


KlEstimator = Literal["k1", "k2", "k3"]


class RolloutCorrection(Section):
    """Between the policy that drew a token, as the rollout engine says, and the one that the update began
    with: weights older than a version, and engines that compute differently."""

    weight: Literal["auto", "none", "token", "sequence"] = "auto"
    """Truncated importance sampling: each token's loss is weighted by π_update/π_rollout, of the token or
    of its whole sequence, at most cap. `auto`: of the token where older weights may have drawn it."""

    cap: float = Field(default=2.0, ge=1, le=1000)
    """Largest weight."""

    mask: Literal["none", "token", "sequence", "geometric"] = "none"
    """Leaves tokens out whose ratio lies outside of maskLow to maskHigh: their own (IcePop), the product
    of their sequence's, or its geometric mean. The mean's divisor still counts them."""

    mask_low: float = Field(default=0.5, ge=0, le=1)
    """Smallest ratio that is kept."""

    mask_high: float = Field(default=2.0, ge=1, le=1000)
    """Largest ratio that is kept."""


class PolicyParams(Section):
    """Parameters of every algorithm that makes responses likelier or less likely by their advantages."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight β of the KL term against the reference model; 0 starts no reference model."""

    kl_estimator: KlEstimator = "k3"
    """Estimator of the KL term (Schulman's k1, k2, k3); k3 is DeepSeekMath's. In the loss, only k2 has the
    gradient of the KL itself, and k1 is refused: its gradient is 0 on average."""

    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term is: added to the loss, or taken off the rewards before the advantages are made."""

    kl_target: float | None = Field(default=None, gt=0, le=100)
    """Adapts klCoefficient after each step, so that the KL a token comes to this many nats; it starts with
    klCoefficient and is saved with the checkpoint. Default: klCoefficient stays."""

    kl_horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """For klTarget: samples within which the coefficient follows the KL; fewer follow faster."""

    ratio_against: Literal["update", "rollout"] = "update"
    """The policy that the clipped ratio is taken against. `update`: as the update engine has it at the start
    of the step (decoupled PPO's proximal policy); `rollout`: the one that drew the tokens, as naive PPO."""

    rollout_correction: RolloutCorrection = RolloutCorrection()
    """What is done about tokens of a policy that is not quite the one being trained."""

    loss_aggregation: LossAggregation = "token-mean"

    length_divisor: int | None = Field(default=None, ge=1, le=10_000_000)
    """For lossAggregation sequence-sum: what token sums are divided by; default: maxResponseLength."""

    min_groups_with_signal: int = Field(default=1, ge=0)
    """Skip the optimizer's step when fewer groups of the batch have rewards that differ."""

    sample_filter: SampleFilter | None = None
    """PF-PPO's filter of samples. Default: all are trained on."""

    batch_reweighting: BatchReweighting | None = None
    """The step's samples drawn anew by their rewards; the update then begins once the whole batch is there.
    Default: each is trained on once."""

    @property
    def refills(self) -> bool:
        """Whether a step's groups are chosen among more, and some of them go into the next step."""
        return False

    @property
    def states(self) -> tuple[str, ...]:
        """The worker states that the algorithm needs, in the order in which a sample meets them."""
        reference = ("reference",) if self.kl_coefficient > 0 else ()
        return ("generate", "reward", *reference, "update")

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns with one item a response token that the update reads beside the response."""
        reference = ("reference_logprobs",) if self.kl_coefficient > 0 else ()
        return ("rollout_logprobs", *reference)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Columns with one item a sample that the update reads (of the paper's M)."""
        return ("reward",)

    @property
    def response_columns(self) -> tuple[str, ...]:
        """Columns as long as a response, the response itself among them (the paper's n)."""
        return ("response", *self.fields)

    @property
    def whole_batch(self) -> bool:
        """Whether advantages depend on all samples of the step, so that no gradient begins before."""
        return False

    @property
    def every_sample_teaches(self) -> bool:
        """Whether samples without advantage have a gradient too."""
        return self.kl_coefficient > 0 and self.kl_in == "loss"

    @property
    def least_samples(self) -> int:
        """Fewest samples of a prompt that advantages are defined for."""
        return 2

    def resolved(self, *, max_response_length: int) -> Self:
        """With defaults that depend on the job filled in; twice changes nothing."""
        filled = {"length_divisor": self.length_divisor or max_response_length}
        return self.model_copy(update=filled)


class ClippedParams(PolicyParams):
    """Parameters of algorithms with PPO's clipped surrogate."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


class NamedAlgorithm(Section):
    """What every member of the union `spec.algorithm` has."""

    name: str
    """Name of the algorithm."""

    params: PolicyParams = PolicyParams()
    """Parameters of the algorithm."""
