"""Each guard on made-up courses of a run: raised where it should be, silent where it should not."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.guards import Guards, steps_of
from rljob_api.topology.resolved import resolve
from rljob_runtime.run.alarm_watch import Alarm, AlarmWatch, Metrics

HEALTHY = {
    "loss": 0.1,
    "gradient_norm": 1.0,
    "entropy": 0.5,
    "groups/with_signal": 0.6,
    "reward/mean": 0.4,
    "reward/std": 0.5,
    "reward/error_share": 0.0,
    "ratio/mean": 1.0,
    "mismatch/ratio_max": 1.1,
    "response_length/mean": 20.0,
    "response_length/clipped_share": 0.1,
}
Course = list[dict[str, float]]


def steady(number: int, **changes: float) -> Course:
    """So many steps alike; names with a slash by `__`."""
    named = {name.replace("__", "/"): value for name, value in changes.items()}
    return [HEALTHY | named for _ in range(number)]


def watch_of(*, compares: bool = True, **guards: Any) -> AlarmWatch:
    made = Guards.model_validate(guards, by_alias=True, by_name=False)
    return AlarmWatch(guards=made, compares=compares)


def watch_by(name: str, **fields: object) -> AlarmWatch:
    """With this of one guard."""
    guards: dict[str, Any] = {name: fields}
    return watch_of(**guards)


def raised(course: list[Metrics] | Course, watch: AlarmWatch | None = None) -> list[Alarm]:
    """Alarms of a course whose first step is 1."""
    watch = watch or watch_of()
    return [
        alarm for step, metrics in enumerate(course, 1) for alarm in watch.observe(step, metrics)[0]
    ]


RAISING: dict[str, tuple[Course, int, str]] = {
    # the course, the step that raises it, words of the message
    "nonFinite": (steady(3) + steady(1, gradient_norm=math.nan), 4, "gradient_norm nan"),
    "entropyCollapse": (steady(4) + steady(5, entropy=0.004), 9, "entropy 0.004 nats"),
    "groupCollapse": (
        steady(2) + steady(5, groups__with_signal=0.0),
        7,
        "100% of the groups have samples with equal rewards",
    ),
    "constantReward": (
        steady(5, reward__std=0.0, reward__mean=1.0),
        5,
        "every sample has reward 1",
    ),
    "rewardErrors": (steady(1, reward__error_share=1.0), 1, "rewards of 100% of the samples"),
    "ratioOutOfRange": (
        steady(1) + steady(3, ratio__mean=1.4),
        4,
        "mean ratio 1.4, outside of 0.8 to 1.25",
    ),
    "lengthExplosion": (
        steady(5) + steady(5, response_length__mean=50.0),
        10,
        "2.5 times the 20 of the steps before",
    ),
    "truncation": (
        steady(5, response_length__clipped_share=0.75),
        5,
        "75% of the responses are cut",
    ),
}
SILENT: dict[str, Course] = {
    "nonFinite": steady(20, loss=-1e30),
    "entropyCollapse": (steady(4, entropy=0.004) + steady(1)) * 4,
    "groupCollapse": (steady(4, groups__with_signal=0.0) + steady(1, groups__with_signal=0.01)) * 4,
    "constantReward": (steady(4, reward__std=0.0) + steady(1, reward__std=0.001)) * 4,
    "rewardErrors": steady(20, reward__error_share=0.99),
    "ratioOutOfRange": steady(20, ratio__mean=1.24, mismatch__ratio_max=999.0),
    "lengthExplosion": [HEALTHY | {"response_length/mean": 20 * 1.05**step} for step in range(40)],
    "truncation": steady(20, response_length__clipped_share=0.49),
}


@pytest.mark.parametrize("name", RAISING)
def test_an_alarm_is_raised_at_the_step_that_fills_its_window(name: str) -> None:
    course, at, words = RAISING[name]

    (alarm,) = raised(course)

    assert (alarm.name, alarm.step) == (name, at)
    window = steps_of(Guards().by_name()[name])
    assert alarm.since == at - window + 1
    assert words in alarm.message
    assert alarm.message.endswith(f"(spec.guards.{name})")


@pytest.mark.parametrize("name", SILENT)
def test_what_is_not_bad_enough_for_long_enough_raises_nothing(name: str) -> None:
    assert raised(SILENT[name]) == []


def test_there_is_a_course_for_every_guard() -> None:
    assert RAISING.keys() == SILENT.keys() == Guards().by_name().keys()


@pytest.mark.parametrize("name", RAISING)
def test_an_ignored_guard_is_silent(name: str) -> None:
    assert raised(RAISING[name][0], watch_by(name, policy="ignore")) == []


@pytest.mark.parametrize("name", sorted(RAISING.keys() - {"nonFinite"}))
def test_a_longer_window_waits_for_more_steps(name: str) -> None:
    course, _, _ = RAISING[name]
    window = steps_of(Guards().by_name()[name]) + 1

    assert raised(course, watch_by(name, window=window)) == []
    later = raised(course[:1] + course + course[-1:] * 2, watch_by(name, window=window))
    assert [alarm.name for alarm in later] == [name]


def test_an_alarm_is_raised_once_and_cleared_once_and_can_come_again() -> None:
    watch = watch_of(entropyCollapse={"window": 2})
    bad, good = HEALTHY | {"entropy": 0.0}, HEALTHY
    told = []

    for step, metrics in enumerate([bad, bad, bad, good, good, bad, bad], 1):
        new, over = watch.observe(step, metrics)
        told += [("raised", step) for _ in new] + [("cleared", step) for _ in over]

    assert told == [("raised", 2), ("cleared", 4), ("raised", 7)]
    assert list(watch.active) == ["entropyCollapse"]


def test_a_token_far_out_of_range_is_an_alarm_though_the_mean_is_fine() -> None:
    (alarm,) = raised(steady(3, mismatch__ratio_max=2000.0))

    assert alarm.name == "ratioOutOfRange"
    assert "a token's ratio of 2e+03 between update and rollout, above 1000" in alarm.message


def test_a_ratio_that_is_too_low_is_an_alarm_and_one_over_no_tokens_is_not() -> None:
    assert [a.name for a in raised(steady(3, ratio__mean=0.5))] == ["ratioOutOfRange"]
    assert raised(steady(9, ratio__mean=0.0)) == []


def test_groups_are_not_watched_where_the_algorithm_compares_no_samples() -> None:
    course = RAISING["groupCollapse"][0]

    assert raised(course, watch_of(compares=False)) == []


@pytest.mark.parametrize(
    ("samples", "algorithm", "compares"),
    [(4, "grpo", True), (4, "ppo", False), (1, "ppo", False)],
)
def test_a_job_says_whether_its_groups_are_watched(
    samples: int, algorithm: str, compares: bool
) -> None:
    batch = {**SMALL_JOB["spec"]["batch"], "samplesPerPrompt": samples}
    spec = {**SMALL_JOB["spec"], "batch": batch, "algorithm": {"name": algorithm}}

    job = resolve(read_job({**SMALL_JOB, "spec": spec}))

    assert AlarmWatch.of(job.spec).compares == compares


def test_after_a_rollback_the_steps_that_are_undone_do_not_count() -> None:
    watch = watch_of(entropyCollapse={"window": 3})
    bad = HEALTHY | {"entropy": 0.0}
    for step in (1, 2, 3):
        watch.observe(step, bad)

    watch.rewind(1)

    assert [
        (len(new), len(over)) for new, over in (watch.observe(2, bad), watch.observe(3, bad))
    ] == [
        (0, 1),
        (1, 0),
    ]


def test_several_metrics_that_are_not_finite_are_one_alarm_that_names_them() -> None:
    bad = HEALTHY | {f"m{i}": math.inf for i in range(6)}

    (alarm,) = raised([bad])

    assert "m0 inf, m1 inf, m2 inf, m3 inf and 2 more" in alarm.message


METRIC = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(min_value=0, max_value=2),
)
STEP = st.dictionaries(st.sampled_from(sorted(HEALTHY)), METRIC)


@given(st.lists(STEP, max_size=30))
def test_whatever_the_metrics_are_each_alarm_alternates_between_raised_and_cleared(
    course: list[dict[str, float]],
) -> None:
    watch, up = watch_of(), set[str]()

    for step, metrics in enumerate(course, 1):
        new, over = watch.observe(step, metrics)
        assert {alarm.name for alarm in new}.isdisjoint(up)
        assert {alarm.name for alarm in over} <= up
        up = (up - {alarm.name for alarm in over}) | {alarm.name for alarm in new}
        assert up == watch.active.keys()
        assert all(1 <= alarm.since <= alarm.step == step for alarm in new)
        broken = any(not math.isfinite(value) for value in metrics.values())
        assert ("nonFinite" in up) == broken


@given(st.lists(st.floats(min_value=0, max_value=0.02), min_size=1, max_size=30))
def test_entropy_is_an_alarm_where_a_whole_window_is_below_and_nowhere_else(
    entropies: list[float],
) -> None:
    watch = watch_of()

    for step, entropy in enumerate(entropies, 1):
        watch.observe(step, {"entropy": entropy})
        window = entropies[max(step - 5, 0) : step]
        assert bool(watch.active) == (len(window) == 5 and max(window) < 0.01)
