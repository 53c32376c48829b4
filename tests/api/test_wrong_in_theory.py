"""Combinations that would train towards something else than they say are refused with the reason."""

import pytest

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob

PARAMS = "spec.algorithm.params"
NAME = "spec.algorithm.name"
ONE = "spec.batch.samplesPerPrompt"
KL = {f"{PARAMS}.klCoefficient": 0.1}
OLDER = {
    "spec.accelerator.devicesPerNode": 4,
    "spec.placement.mode": "separated",
    "spec.placement.updateDevices": 2,
    "spec.flow.mode": "async",
}

SEPARATED = {**OLDER, "spec.flow.mode": "sync"}
PAIRS = {
    NAME: "dpo",
    "spec.data": {"preferences": {"path": "pairs.jsonl"}},
    "spec.rewards": [],
    "spec.batch.samplesPerPrompt": 2,
}
TAUGHT = {NAME: "distillation", "spec.teacher": {"path": "big"}}

WRONG = [
    ({**KL, f"{PARAMS}.klEstimator": "k1"}, f"{PARAMS}.klEstimator", "0 on average"),
    ({**KL, f"{PARAMS}.klIn": "reward"}, f"{PARAMS}.klEstimator", "use k1, or klIn: loss"),
    ({f"{PARAMS}.klTarget": 0.1}, f"{PARAMS}.klTarget", "0 stays 0"),
    (
        {NAME: "gspo", f"{PARAMS}.lossAggregation": "token-mean"},
        f"{PARAMS}.lossAggregation",
        "use sequence-mean, or algorithm grpo",
    ),
    (
        {NAME: "gspo", f"{PARAMS}.lossAggregation": "sequence-sum"},
        f"{PARAMS}.lossAggregation",
        "is sequence-sum, which weights",
    ),
    (
        {f"{PARAMS}.rolloutCorrection": {"weight": "token"}, "spec.rollout.topP": 0.9},
        "spec.rollout.topP",
        "truncated distribution",
    ),
    (
        {f"{PARAMS}.rolloutCorrection": {"mask": "token"}, "spec.rollout.topK": 20},
        "spec.rollout.topK",
        "rolloutCorrection.mask is biased",
    ),
    ({**OLDER, "spec.rollout.topP": 0.9}, "spec.rollout.topP", "is 0.9"),
    (
        {f"{PARAMS}.ratioAgainst": "rollout", f"{PARAMS}.rolloutCorrection": {"weight": "token"}},
        f"{PARAMS}.rolloutCorrection.weight",
        "count twice",
    ),
    (
        {**OLDER, f"{PARAMS}.ratioAgainst": "rollout"},
        f"{PARAMS}.rolloutCorrection.weight",
        "is auto, but",
    ),
    (
        {NAME: "dapo", f"{PARAMS}.overlong": {"bufferTokens": 100_000}},
        f"{PARAMS}.overlong.bufferTokens",
        "every response costs something",
    ),
    ({NAME: "rloo", ONE: 1}, ONE, "at least 2"),
    ({NAME: "grpo", f"{PARAMS}.scaleAdvantages": True, ONE: 1}, ONE, "grpo compares the samples"),
    ({NAME: "dapo", f"{PARAMS}.dynamicSampling": {}, ONE: 1}, ONE, "dapo compares the samples"),
    (
        {f"{PARAMS}.sampleFilter": {}, f"{PARAMS}.batchReweighting": {}},
        f"{PARAMS}.batchReweighting",
        "neither has its weights",
    ),
    ({**PAIRS, NAME: "grpo"}, NAME, "with spec.data.preferences use dpo"),
    ({**PAIRS, "spec.batch.samplesPerPrompt": 4}, "spec.batch.samplesPerPrompt", "use 2"),
    ({**PAIRS, **SEPARATED}, "spec.placement.mode", "nothing is generated"),
    (
        {**PAIRS, "spec.rewards": [{"name": "a", "type": "exact"}]},
        "spec.rewards",
        "whose pairs say what is better",
    ),
    (
        {**PAIRS, "spec.accelerator.devicesPerNode": 2, "spec.evaluation": {"prompts": 3}},
        "spec.evaluation.prompts",
        "3 prompts cannot be shared evenly by 2 replicas of the policy",
    ),
    ({NAME: "distillation"}, "spec.teacher", "is missing"),
    ({"spec.teacher": {"path": "big"}}, "spec.teacher", "has no use with algorithm grpo"),
    ({**TAUGHT, "spec.rollout.topP": 0.9}, "spec.rollout.topP", "the distance from the teacher"),
    ({**TAUGHT, f"{PARAMS}.sampleFilter": {}}, f"{PARAMS}.sampleFilter", "rewardCoefficient is 0"),
    (
        {**TAUGHT, **KL, f"{PARAMS}.klIn": "reward", f"{PARAMS}.klEstimator": "k1"},
        f"{PARAMS}.klIn",
        "use klIn: loss",
    ),
    (
        {**TAUGHT, "spec.teacher.parallelism": {"tensor": 3}},
        "spec.teacher.parallelism",
        "",
    ),
]

RIGHT = [
    {**KL, f"{PARAMS}.klEstimator": "k2"},
    {**KL, f"{PARAMS}.klIn": "reward", f"{PARAMS}.klEstimator": "k1"},
    {**KL, f"{PARAMS}.klTarget": 0.1},
    {NAME: "gspo"},
    PAIRS,
    {**PAIRS, "spec.flow.mode": "streaming", "spec.evaluation": {"prompts": 4}},
    TAUGHT,
    {**TAUGHT, **KL, "spec.batch.samplesPerPrompt": 1},
    {**TAUGHT, f"{PARAMS}.rewardCoefficient": 0.5, f"{PARAMS}.sampleFilter": {}},
    {"spec.rollout.topP": 0.9},
    {**OLDER, "spec.rollout.topP": 0.9, f"{PARAMS}.rolloutCorrection": {"weight": "none"}},
    {
        **OLDER,
        f"{PARAMS}.ratioAgainst": "rollout",
        f"{PARAMS}.rolloutCorrection": {"weight": "none"},
    },
    {NAME: "reinforce-plus-plus", "spec.batch.samplesPerPrompt": 1},
    {NAME: "dapo", f"{PARAMS}.overlong": {"bufferTokens": 4}},
]


@pytest.mark.parametrize(("changes", "path", "message"), WRONG)
def test_it_is_refused_with_the_reason(manifest, changes, path, message):
    with pytest.raises(InvalidJob) as refused:
        read_job(manifest(changes))

    problems = [problem for problem in refused.value.problems if problem.path == path]
    assert [message in problem.message for problem in problems] == [True]


@pytest.mark.parametrize("changes", RIGHT)
def test_what_is_right_is_taken(manifest, changes):
    assert read_job(manifest(changes)).spec.steps
