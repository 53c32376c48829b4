"""Guards: decide which alarms a run's steps raise, from metrics. Pure, without torch.

`alarm_actions` calls it after each step. A guard checks the last steps, as many as its window has. Its alarm
is raised once, when all of them are bad, and cleared when they no longer are. Metrics are those of the `step`
event (docs/events.md), before non-finite values became null. A guard whose metric is missing raises nothing.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_api.spec.guards import (
    ConstantRewardGuard,
    EntropyCollapseGuard,
    GroupCollapseGuard,
    GuardPolicy,
    Guards,
    LengthExplosionGuard,
    NonFiniteGuard,
    RatioOutOfRangeGuard,
    RewardErrorsGuard,
    TruncationGuard,
    steps_of,
)
from rljob_api.topology.resolved import ResolvedSpec

Metrics = Mapping[str, float]
NAMED_METRICS = 4
"""Most metrics that a message about non-finite values names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A raised alarm. name: of its guard in YAML. since, step: first and last step of what raised it. value:
    of the metric at `step`. message: the same for people, with the limit and the field that sets it."""

    name: str
    policy: GuardPolicy
    since: int
    step: int
    value: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardViolation:
    """The value and the message of a guard whose window is bad throughout."""

    value: float
    text: str


@dataclass(slots=True, kw_only=True)
class AlarmWatch:
    """The guards of one run. compares: the algorithm compares the samples of a prompt. active: alarms that
    are raised and not cleared, by name."""

    guards: Guards
    compares: bool
    active: dict[str, Alarm] = field(default_factory=dict)
    _steps: list[tuple[int, Metrics]] = field(default_factory=list)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "AlarmWatch":
        """Return the guards of a job."""
        several = spec.batch.samples_per_prompt > 1
        return cls(guards=spec.guards, compares=several and spec.algorithm.params.least_samples > 1)

    def observe(self, step: int, metrics: Metrics) -> tuple[list[Alarm], list[Alarm]]:
        """Take the metrics of a step in. Returns the alarms that it raises, and those that it clears."""
        self._steps = [*self._steps, (step, dict(metrics))][-self._most_steps() :]
        raised, cleared = [], []
        for name, guard in self.guards.by_name().items():
            if guard.policy == "ignore" or (name == "groupCollapse" and not self.compares):
                continue
            violation = CHECKS[type(guard)]([metrics for _, metrics in self._steps], guard)
            if violation is None:
                if ended := self.active.pop(name, None):
                    cleared.append(ended)
            elif name not in self.active:
                alarm = Alarm(
                    name=name,
                    policy=guard.policy,
                    since=step - steps_of(guard) + 1,
                    step=step,
                    value=violation.value,
                    message=f"{violation.text} (spec.guards.{name})",
                )
                self.active[name] = alarm
                raised.append(alarm)
        return raised, cleared

    def rewind(self, step: int) -> None:
        """Forget the steps after this one: the run went back to its end."""
        self._steps = [(number, metrics) for number, metrics in self._steps if number <= step]

    def _most_steps(self) -> int:
        return 2 * max(steps_of(guard) for guard in self.guards.by_name().values())


def non_finite(steps: Sequence[Metrics], guard: NonFiniteGuard) -> GuardViolation | None:
    """Check for a metric of the last step that is NaN or infinite."""
    bad = sorted(name for name, value in steps[-1].items() if not math.isfinite(value))
    if not bad:
        return None
    more = f" and {len(bad) - NAMED_METRICS} more" if len(bad) > NAMED_METRICS else ""
    named = ", ".join(f"{name} {steps[-1][name]:g}" for name in bad[:NAMED_METRICS])
    return GuardViolation(value=steps[-1][bad[0]], text=f"not finite: {named}{more}")


def entropy_collapse(
    steps: Sequence[Metrics], guard: EntropyCollapseGuard
) -> GuardViolation | None:
    """Check for an entropy below the threshold."""
    values = _window(steps, "entropy", guard.window)
    if not values or max(values) >= guard.threshold:
        return None
    text = f"entropy {values[-1]:.3g} nats a token, below {guard.threshold:g}"
    return GuardViolation(value=values[-1], text=text + _duration(guard.window))


def group_collapse(steps: Sequence[Metrics], guard: GroupCollapseGuard) -> GuardViolation | None:
    """Check for too many groups whose rewards are all equal."""
    values = [1 - share for share in _window(steps, "groups/with_signal", guard.window)]
    if not values or min(values) < guard.threshold:
        return None
    text = f"{values[-1]:.0%} of the groups have samples with equal rewards, so advantage 0"
    return GuardViolation(value=values[-1], text=text + _duration(guard.window))


def constant_reward(steps: Sequence[Metrics], guard: ConstantRewardGuard) -> GuardViolation | None:
    """Check for samples of all prompts with the same reward."""
    values = _window(steps, "reward/std", guard.window)
    if not values or max(values) >= guard.threshold:
        return None
    means = _window(steps, "reward/mean", 1)
    every = f"every sample has reward {means[0]:g}" if means else "all samples have one reward"
    return GuardViolation(value=values[-1], text=every + _duration(guard.window))


def reward_errors(steps: Sequence[Metrics], guard: RewardErrorsGuard) -> GuardViolation | None:
    """Check for too many samples that no reward could score."""
    values = _window(steps, "reward/error_share", guard.window)
    if not values or min(values) < guard.threshold:
        return None
    text = f"rewards of {values[-1]:.0%} of the samples failed"
    return GuardViolation(value=values[-1], text=text + _duration(guard.window))


def ratio_out_of_range(
    steps: Sequence[Metrics], guard: RatioOutOfRangeGuard
) -> GuardViolation | None:
    """Check for a mean ratio outside of its range, or a token's ratio above its limit. A mean of 0 covers no
    tokens."""
    means = _window(steps, "ratio/mean", guard.window)
    if means and all(mean > 0 and not guard.low <= mean <= guard.high for mean in means):
        text = f"mean ratio {means[-1]:.3g}, outside of {guard.low:g} to {guard.high:g}"
        return GuardViolation(value=means[-1], text=text + _duration(guard.window))
    largest = _window(steps, "mismatch/ratio_max", guard.window)
    if largest and min(largest) > guard.threshold:
        text = f"a token's ratio of {largest[-1]:.3g} between update and rollout, above {guard.threshold:g}"
        return GuardViolation(value=largest[-1], text=text + _duration(guard.window))
    return None


def length_explosion(
    steps: Sequence[Metrics], guard: LengthExplosionGuard
) -> GuardViolation | None:
    """Compare the window's mean length with that of the window before."""
    values = _window(steps, "response_length/mean", 2 * guard.window)
    if not values:
        return None
    before = sum(values[: guard.window]) / guard.window
    recent = sum(values[guard.window :]) / guard.window
    if before <= 0 or recent <= guard.threshold * before:
        return None
    return GuardViolation(
        value=recent / before,
        text=f"responses of {recent:.0f} tokens over {guard.window} steps, {recent / before:.1f} times the "
        f"{before:.0f} of the steps before, above {guard.threshold:g}",
    )


def truncation(steps: Sequence[Metrics], guard: TruncationGuard) -> GuardViolation | None:
    """Check for too many responses at the length limit."""
    values = _window(steps, "response_length/clipped_share", guard.window)
    if not values or min(values) < guard.threshold:
        return None
    text = f"{values[-1]:.0%} of the responses are cut at spec.batch.maxResponseLength"
    return GuardViolation(value=values[-1], text=text + _duration(guard.window))


def _window(steps: Sequence[Metrics], name: str, length: int) -> list[float]:
    """Return the metric in the last steps; empty if the steps are fewer, or one of them lacks it or is not
    finite."""
    if len(steps) < length:
        return []
    values = [steps[-length + i].get(name, math.nan) for i in range(length)]
    return values if all(map(math.isfinite, values)) else []


def _duration(window: int) -> str:
    return f" for {window} steps" if window > 1 else ""


CHECKS: dict[type, Callable[..., GuardViolation | None]] = {
    NonFiniteGuard: non_finite,
    EntropyCollapseGuard: entropy_collapse,
    GroupCollapseGuard: group_collapse,
    ConstantRewardGuard: constant_reward,
    RewardErrorsGuard: reward_errors,
    RatioOutOfRangeGuard: ratio_out_of_range,
    LengthExplosionGuard: length_explosion,
    TruncationGuard: truncation,
}
