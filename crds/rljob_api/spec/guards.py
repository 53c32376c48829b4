"""Guards: what a run watches its own steps for, and what follows an alarm.

Each guard is one named alarm. The runtime's `alarm_watch` decides on a step's metrics, `guard_rules` holds
what a rollback needs. Thresholds are in the units of the metrics (docs/events.md).
"""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.section import Section

GuardPolicy = Literal["ignore", "warn", "stop", "rollback"]
Window = Annotated[int, Field(ge=1, le=10_000)]
Share = Annotated[float, Field(gt=0, le=1)]


class NonFiniteGuard(Section):
    """A loss, a gradient's norm, log-probs or another metric of the step is NaN or infinite. The optimizer's
    step has not been taken then, so the weights stay as they were."""

    policy: GuardPolicy = "stop"
    """What follows: `ignore` nothing, `warn` goes on, `stop` fails the run, `rollback` goes back to the last
    checkpoint before the alarm's first step and on with other prompts."""


class EntropyCollapseGuard(Section):
    """Mean entropy of the response tokens has gone: every sample of a prompt is nearly the same."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: float = Field(default=0.01, gt=0, le=100)
    """Nats a token; lower is an alarm."""


class GroupCollapseGuard(Section):
    """Groups whose samples all have the same reward: their advantages are 0 and nothing is learned. Watched
    where the algorithm compares the samples of a prompt."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: Share = 1.0
    """Share of the step's groups; as many or more are an alarm."""


class ConstantRewardGuard(Section):
    """All samples of a step have the same reward: a reward that tells nothing, or a task that is solved."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: float = Field(default=1e-6, gt=0, le=1000)
    """Standard deviation of the samples' rewards; lower is an alarm."""


class RewardErrorsGuard(Section):
    """Rewards that raise, time out or do not answer; their samples count 0."""

    policy: GuardPolicy = "stop"
    """What follows, as for nonFinite."""

    window: Window = 1
    """Steps in a row."""

    threshold: Share = 1.0
    """Share of the step's samples with an error; as many or more are an alarm."""


class RatioOutOfRangeGuard(Section):
    """Ratios of probabilities, trained against drawn, that no clipping keeps harmless: engines that disagree,
    weights that did not reach the rollout, samples that are too old."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 3
    """Steps in a row."""

    low: float = Field(default=0.8, ge=0, lt=1)
    """Mean of the loss's ratio over response tokens; lower is an alarm."""

    high: float = Field(default=1.25, gt=1, le=1e6)
    """Mean of the loss's ratio over response tokens; higher is an alarm."""

    threshold: float = Field(default=1000.0, gt=1, le=1e12)
    """Largest ratio of a token between update and rollout, not limited; higher is an alarm."""


class LengthExplosionGuard(Section):
    """Responses have become much longer within a few steps."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps whose mean length is compared with that of as many steps before them."""

    threshold: float = Field(default=2.0, gt=1, le=1000)
    """Factor between the two; higher is an alarm."""


class TruncationGuard(Section):
    """Responses that are cut at maxResponseLength, and so are never rewarded for an end."""

    policy: GuardPolicy = "warn"
    """What follows, as for nonFinite."""

    window: Window = 5
    """Steps in a row."""

    threshold: Share = 0.5
    """Share of the step's samples; as many or more are an alarm."""


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
    """An alarm that is raised, as a driver tells it to the operator."""

    name: str
    """Name of its guard in YAML."""

    step: int
    """Step at whose end it was raised."""

    message: str
    """What was found."""


class Guards(Section):
    """What a run watches its own steps for; each is an alarm of that name."""

    non_finite: NonFiniteGuard = NonFiniteGuard()
    """NaN or infinity in loss, gradients or log-probs."""

    entropy_collapse: EntropyCollapseGuard = EntropyCollapseGuard()
    """Entropy near 0."""

    group_collapse: GroupCollapseGuard = GroupCollapseGuard()
    """Groups without a signal."""

    constant_reward: ConstantRewardGuard = ConstantRewardGuard()
    """All rewards equal."""

    reward_errors: RewardErrorsGuard = RewardErrorsGuard()
    """All rewards erring."""

    ratio_out_of_range: RatioOutOfRangeGuard = RatioOutOfRangeGuard()
    """Ratios far from 1."""

    length_explosion: LengthExplosionGuard = LengthExplosionGuard()
    """Responses suddenly longer."""

    truncation: TruncationGuard = TruncationGuard()
    """Responses cut at the limit."""

    max_rollbacks: int = Field(default=2, ge=0, le=1000)
    """Rollbacks of a run, of all guards together; the next alarm that asks for one stops it."""

    def by_name(self) -> dict[str, Guard]:
        """The guards by their names in YAML."""
        return {
            field.alias or name: getattr(self, name)
            for name, field in type(self).model_fields.items()
            if name != "max_rollbacks"
        }


class Stragglers(Section):
    """Devices, and links of their hosts, that are slower than their peers, step after step."""

    factor: float = Field(default=2.0, gt=1, le=1000)
    """A device is slow that takes more than so many times the median of its peers for its own work, for a
    token and for a pass; a link, for a byte and for a row."""

    steps: int = Field(default=5, ge=1, le=10_000)
    """Steps in a row in which it is, before it is told; and in which it is not, before that is over."""

    action: Literal["tell", "replace"] = "tell"
    """What follows: `tell` goes on; `replace` starts the device again between two steps, on another node with
    the others of its node where Ray has one free, once within 20 times `steps`."""


def steps_of(guard: Guard) -> int:
    """Steps that an alarm of the guard is about: it began that many steps ago."""
    return 1 if isinstance(guard, NonFiniteGuard) else guard.window
