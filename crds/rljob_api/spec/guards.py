"""Guards: alarms on a run's own steps, and the policies that follow them.

Each guard is one named alarm. The runtime's `alarm_watch` evaluates a step's metrics, and `guard_rules`
checks what a rollback needs. Thresholds are in the units of the metrics (docs/events.md).
"""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.section import Section

GuardPolicy = Literal["ignore", "warn", "stop", "rollback"]
Window = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(gt=0, le=1)]


class NonFiniteGuard(Section):
    """A loss, a gradient's norm, log-probs or another metric of the step is NaN or infinite. The optimizer's
    step has not been taken then, so the weights are unchanged."""

    policy: GuardPolicy = "stop"
    """What follows: `ignore` does nothing, `warn` continues, `stop` fails the run, `rollback` returns to the
    last checkpoint before the alarm's first step and continues with other prompts."""


class EntropyCollapseGuard(Section):
    """Mean entropy of the response tokens is nearly 0: all samples of a prompt are nearly the same."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: float = Field(default=0.01, gt=0, le=100)
    """Nats per token; lower values raise the alarm."""


class GroupCollapseGuard(Section):
    """Groups whose samples all have the same reward: their advantages are 0 and nothing is learned. Checked
    if the algorithm compares the samples of a prompt."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: Share = 1.0
    """Share of the step's groups; as many or more raise the alarm."""


class ConstantRewardGuard(Section):
    """All samples of a step have the same reward: the reward carries no information, or the task is
    solved."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: float = Field(default=1e-6, gt=0, le=1000)
    """Standard deviation of the samples' rewards; lower values raise the alarm."""


class RewardErrorsGuard(Section):
    """Rewards that raise an exception, time out or do not respond; their samples count 0."""

    policy: GuardPolicy = "stop"
    """What follows, as for nonFinite."""

    window: Window = 1
    """Steps in a row."""

    threshold: Share = 1.0
    """Share of the step's samples with an error; as many or more raise the alarm."""


class RatioOutOfRangeGuard(Section):
    """Ratios of probabilities, trained against drawn, that no clipping can correct: engines that disagree,
    weights that did not reach the rollout, samples that are too old."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 3
    """Steps in a row."""

    low: float = Field(default=0.8, ge=0, lt=1)
    """Mean of the loss's ratio over response tokens; lower values raise the alarm."""

    high: float = Field(default=1.25, gt=1, le=1e6)
    """Mean of the loss's ratio over response tokens; higher values raise the alarm."""

    threshold: float = Field(default=1000.0, gt=1, le=1e12)
    """Largest ratio of a token between update and rollout, without limit; higher values raise the alarm."""


class LengthExplosionGuard(Section):
    """Responses have become much longer within a few steps."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps whose mean length is compared with that of as many steps before them."""

    threshold: float = Field(default=2.0, gt=1, le=1000)
    """Factor between the two; higher values raise the alarm."""


class TruncationGuard(Section):
    """Responses that are cut at maxResponseLength, and so are never rewarded for an end."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: Share = 0.5
    """Share of the step's samples; as many or more raise the alarm."""


Guard = (
    NonFiniteGuard
    | EntropyCollapseGuard
    | GroupCollapseGuard
    | ConstantRewardGuard
    | RewardErrorsGuard
    | RatioOutOfRangeGuard
    | LengthExplosionGuard
    | TruncationGuard
)


class AlarmReport(Section):
    """An alarm that is raised, as a driver reports it to the operator."""

    name: str
    """Name of its guard in YAML."""

    step: int
    """Step at whose end it was raised."""

    message: str
    """What was found."""


class Guards(Section):
    """Alarms on the run's own steps; each has the name of its field."""

    non_finite: NonFiniteGuard = NonFiniteGuard()
    """NaN or infinity in loss, gradients or log-probs."""

    entropy_collapse: EntropyCollapseGuard = EntropyCollapseGuard()
    """Entropy near 0."""

    group_collapse: GroupCollapseGuard = GroupCollapseGuard()
    """Groups without a signal."""

    constant_reward: ConstantRewardGuard = ConstantRewardGuard()
    """All rewards equal."""

    reward_errors: RewardErrorsGuard = RewardErrorsGuard()
    """All rewards with errors."""

    ratio_out_of_range: RatioOutOfRangeGuard = RatioOutOfRangeGuard()
    """Ratios far from 1."""

    length_explosion: LengthExplosionGuard = LengthExplosionGuard()
    """Responses suddenly longer."""

    truncation: TruncationGuard = TruncationGuard()
    """Responses cut at the limit."""

    max_rollbacks: int = Field(default=2, ge=0, le=1000)
    """Rollbacks of a run, of all guards together; the next alarm that requires one stops it."""

    def by_name(self) -> dict[str, Guard]:
        """Return the guards by their names in YAML."""
        return {
            field.alias or name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name != "max_rollbacks"
        }


class Stragglers(Section):
    """Devices, and links of their hosts, that are slower than their peers, step after step."""

    factor: float = Field(default=2.0, gt=1, le=1000)
    """A device is slow if it takes more than this many times the median of its peers for its own work, per
    token and per pass; a link, per byte and per row."""

    steps: int = Field(default=5, ge=1, le=10_000)
    """Consecutive steps in which it is slow before it is reported, and in which it is not before that
    ends."""

    action: Literal["tell", "replace"] = "tell"
    """What follows: `tell` only reports it; `replace` restarts the device between two steps, on another node
    with the others of its node if Ray has one free, once within 20 times `steps`."""


def steps_of(guard: Guard) -> int:
    """Return how many steps an alarm of the guard covers: it started that many steps ago."""
    return 1 if isinstance(guard, NonFiniteGuard) else guard.window
