"""Guards: which alarms a run's steps raise. Pure, without torch: metrics of steps in, alarms out.

Called by `alarm_actions` after each step. A guard looks at the last steps that its window spans; its alarm is
raised once, when they are all bad, and cleared when they no longer are. Metrics are those of the `step` event
(docs/events.md), before what is not finite became null; a guard whose metric is missing is silent.
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
"""So many metrics that are not finite are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """name: of its guard in YAML. since, step: first and last step of what raised it. value: of the metric at
    `step`, message: the same for people, with the limit and the field that sets it."""

    name: str
    policy: GuardPolicy
    since: int
    step: int
    value: float
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a guard says of its window when all of it is bad."""

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
        """Those of a job."""
        several = spec.batch.samples_per_prompt > 1
        return cls(guards=spec.guards, compares=several and spec.algorithm.params.least_samples > 1)

    def look(self, step: int, metrics: Metrics) -> tuple[list[Alarm], list[Alarm]]:
        """Take a step in; alarms that it raises, and those that are over."""
        self._steps = [*self._steps, (step, dict(metrics))][-self._most_steps() :]
        raised, cleared = [], []
        for name, guard in self.guards.by_name().items():
            if guard.policy == "ignore" or (name == "groupCollapse" and not self.compares):
                continue
            found = CHECKS[type(guard)]([metrics for _, metrics in self._steps], guard)
            if found is None:
                if over := self.active.pop(name, None):
                    cleared.append(over)
            elif name not in self.active:
                alarm = Alarm(
                    name=name,
                    policy=guard.policy,
                    since=step - steps_of(guard) + 1,
                    step=step,
                    value=found.value,
                    message=f"{found.text} (spec.guards.{name})",
                )
                self.active[name] = alarm
                raised.append(alarm)
        return raised, cleared

    def rewind(self, step: int) -> None:
        """The run went back to the end of this step: later ones never were."""
        self._steps = [(number, metrics) for number, metrics in self._steps if number <= step]

    def _most_steps(self) -> int:
        return 2 * max(steps_of(guard) for guard in self.guards.by_name().values())


def non_finite(steps: Sequence[Metrics], guard: NonFiniteGuard) -> Found | None:
    """A metric of the last step is NaN or infinite."""
    bad = sorted(name for name, value in steps[-1].items() if not math.isfinite(value))
    if not bad:
        return None
    more = f" and {len(bad) - NAMED_METRICS} more" if len(bad) > NAMED_METRICS else ""
    named = ", ".join(f"{name} {steps[-1][name]:g}" for name in bad[:NAMED_METRICS])
    return Found(value=steps[-1][bad[0]], text=f"not finite: {named}{more}")


def entropy_collapse(steps: Sequence[Metrics], guard: EntropyCollapseGuard) -> Found | None:
    """Entropy below the threshold."""
    values = _window(steps, "entropy", guard.window)
    if not values or max(values) >= guard.threshold:
        return None
    text = f"entropy {values[-1]:.3g} nats a token, below {guard.threshold:g}"
    return Found(value=values[-1], text=text + _for(guard.window))


def group_collapse(steps: Sequence[Metrics], guard: GroupCollapseGuard) -> Found | None:
    """Too many groups whose rewards are all alike."""
    values = [1 - share for share in _window(steps, "groups/with_signal", guard.window)]
    if not values or min(values) < guard.threshold:
        return None
    text = f"{values[-1]:.0%} of the groups have samples with equal rewards, so advantage 0"
    return Found(value=values[-1], text=text + _for(guard.window))


def constant_reward(steps: Sequence[Metrics], guard: ConstantRewardGuard) -> Found | None:
    """Samples of all prompts with one reward."""
    values = _window(steps, "reward/std", guard.window)
    if not values or max(values) >= guard.threshold:
        return None
    means = _window(steps, "reward/mean", 1)
    every = f"every sample has reward {means[0]:g}" if means else "all samples have one reward"
    return Found(value=values[-1], text=every + _for(guard.window))


def reward_errors(steps: Sequence[Metrics], guard: RewardErrorsGuard) -> Found | None:
    """Too many samples that no reward could score."""
    values = _window(steps, "reward/error_share", guard.window)
    if not values or min(values) < guard.threshold:
        return None
    text = f"rewards of {values[-1]:.0%} of the samples failed"
    return Found(value=values[-1], text=text + _for(guard.window))


def ratio_out_of_range(steps: Sequence[Metrics], guard: RatioOutOfRangeGuard) -> Found | None:
    """The mean ratio left its range, or the largest ratio of a token its limit. A mean of 0 is one over no
    tokens."""
    means = _window(steps, "ratio/mean", guard.window)
    if means and all(mean > 0 and not guard.low <= mean <= guard.high for mean in means):
        text = f"mean ratio {means[-1]:.3g}, outside of {guard.low:g} to {guard.high:g}"
        return Found(value=means[-1], text=text + _for(guard.window))
    largest = _window(steps, "mismatch/ratio_max", guard.window)
    if largest and min(largest) > guard.threshold:
        text = f"a token's ratio of {largest[-1]:.3g} between update and rollout, above {guard.threshold:g}"
        return Found(value=largest[-1], text=text + _for(guard.window))
    return None


def length_explosion(steps: Sequence[Metrics], guard: LengthExplosionGuard) -> Found | None:
    """The window's mean length against that of the window before."""
    values = _window(steps, "response_length/mean", 2 * guard.window)
    if not values:
        return None
    before = sum(values[: guard.window]) / guard.window
    now = sum(values[guard.window :]) / guard.window
    if before <= 0 or now <= guard.threshold * before:
        return None
    return Found(
        value=now / before,
        text=f"responses of {now:.0f} tokens over {guard.window} steps, {now / before:.1f} times the "
        f"{before:.0f} of the steps before, above {guard.threshold:g}",
    )


def truncation(steps: Sequence[Metrics], guard: TruncationGuard) -> Found | None:
    """Too many responses at the limit."""
    values = _window(steps, "response_length/clipped_share", guard.window)
    if not values or min(values) < guard.threshold:
        return None
    text = f"{values[-1]:.0%} of the responses are cut at spec.batch.maxResponseLength"
    return Found(value=values[-1], text=text + _for(guard.window))


def _window(steps: Sequence[Metrics], name: str, length: int) -> list[float]:
    """The metric in the last steps; empty where they are fewer, or one of them lacks it or is not finite."""
    if len(steps) < length:
        return []
    values = [steps[-length + i].get(name, math.nan) for i in range(length)]
    return values if all(map(math.isfinite, values)) else []


def _for(window: int) -> str:
    return f" for {window} steps" if window > 1 else ""


CHECKS: dict[type, Callable[..., Found | None]] = {
    NonFiniteGuard: non_finite,
    EntropyCollapseGuard: entropy_collapse,
    GroupCollapseGuard: group_collapse,
    ConstantRewardGuard: constant_reward,
    RewardErrorsGuard: reward_errors,
    RatioOutOfRangeGuard: ratio_out_of_range,
    LengthExplosionGuard: length_explosion,
    TruncationGuard: truncation,
}
