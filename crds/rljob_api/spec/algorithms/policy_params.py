"""Parameters that every policy-gradient algorithm has, and how an algorithm declares its needs.

An algorithm's file subclasses `PolicyParams`. `states`, `fields` and `scalars` list the states that start and
the columns that its update reads. Fields that several algorithms have with other defaults are types here.
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
    """Corrects between the policy that drew a token, as reported by the rollout engine, and the policy at the
    start of the update. They differ if weights are older, or if engines compute differently."""

    weight: Literal["auto", "none", "token", "sequence"] = "auto"
    """Truncated importance sampling: each token's loss is weighted by π_update/π_rollout, of the token or of
    its full sequence, at most cap. `auto`: of the token, if older weights may have drawn it."""

    cap: float = Field(default=2.0, ge=1, le=1000)
    """Largest weight."""

    mask: Literal["none", "token", "sequence", "geometric"] = "none"
    """Leaves tokens out whose ratio is outside of maskLow to maskHigh: their own (IcePop), the product of
    their sequence's, or its geometric mean. The mean's divisor still counts them."""

    mask_low: float = Field(default=0.5, ge=0, le=1)
    """Smallest ratio that is kept."""

    mask_high: float = Field(default=2.0, ge=1, le=1000)
    """Largest ratio that is kept."""


class PolicyParams(Section):
    """Parameters of every algorithm that makes responses more or less likely by their advantages."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight β of the KL term against the reference model; 0 starts no reference model."""

    kl_estimator: KlEstimator = "k3"
    """Estimator of the KL term (Schulman's k1, k2, k3); k3 is DeepSeekMath's. In the loss, only k2 has the
    gradient of the KL itself, and k1 is refused: its gradient is 0 on average."""

    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term is: added to the loss, or subtracted from the rewards before the advantages are
    computed."""

    kl_target: float | None = Field(default=None, gt=0, le=100)
    """Adapts klCoefficient after each step, so that the KL per token approaches this many nats; it starts
    with klCoefficient and is saved with the checkpoint. Default: klCoefficient stays."""

    kl_horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """For klTarget: samples over which the coefficient follows the KL; with fewer it follows faster."""

    ratio_against: Literal["update", "rollout"] = "update"
    """The policy that the clipped ratio is taken against. `update`: as the update engine computes it at the
    start of the step (decoupled PPO's proximal policy); `rollout`: the one that drew the tokens, as in naive
    PPO."""

    rollout_correction: RolloutCorrection = RolloutCorrection()
    """How to treat tokens of a policy that differs from the one being trained."""

    loss_aggregation: LossAggregation = "token-mean"

    length_divisor: int | None = Field(default=None, ge=1, le=10_000_000)
    """For lossAggregation sequence-sum: divisor of token sums; default: maxResponseLength."""

    min_groups_with_signal: int = Field(default=1, ge=0)
    """Skip the optimizer's step when fewer groups of the batch have rewards that differ."""

    sample_filter: SampleFilter | None = None
    """PF-PPO's filter of samples. Default: all are trained on."""

    batch_reweighting: BatchReweighting | None = None
    """Draw the step's samples again by their rewards; the update then starts once the full batch is
    available. Default: each is trained on once."""

    @property
    def refills(self) -> bool:
        """Return whether a step's groups are chosen among more, and some of them go into the next step."""
        return False

    @property
    def states(self) -> tuple[str, ...]:
        """Return the worker states that the algorithm needs, in the order in which a sample passes them."""
        reference = ("reference",) if self.kl_coefficient > 0 else ()
        return ("generate", "reward", *reference, "update")

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns with one item per response token that the update reads besides the response."""
        reference = ("reference_logprobs",) if self.kl_coefficient > 0 else ()
        return ("rollout_logprobs", *reference)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Return the columns with one item per sample that the update reads (of the paper's M)."""
        return ("reward",)

    @property
    def response_columns(self) -> tuple[str, ...]:
        """Return the columns as long as a response, including the response itself (the paper's n)."""
        return ("response", *self.fields)

    @property
    def whole_batch(self) -> bool:
        """Return whether advantages depend on all samples of the step, so that no gradient starts before."""
        return False

    @property
    def every_sample_teaches(self) -> bool:
        """Return whether samples without advantage also have a gradient."""
        return self.kl_coefficient > 0 and self.kl_in == "loss"

    @property
    def least_samples(self) -> int:
        """Return the fewest samples per prompt that advantages are defined for."""
        return 2

    def resolved(self, *, max_response_length: int) -> Self:
        """Return the parameters with defaults that depend on the job filled in. Resolving them again changes
        nothing."""
        filled = {"length_divisor": self.length_divisor or max_response_length}
        return self.model_copy(update=filled)


class ClippedParams(PolicyParams):
    """Parameters of algorithms with PPO's clipped surrogate."""

    clip_low: ClipLow = 0.2
    clip_high: ClipHigh = 0.2


class NamedAlgorithm(Section):
    """Fields that every member of the union `spec.algorithm` has."""

    name: str
    """Name of the algorithm."""

    params: PolicyParams = PolicyParams()
    """Parameters of the algorithm."""
