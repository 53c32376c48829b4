"""Whole runs of two algorithms: DAPO that draws prompts until a step is full, RLOO whose KL price adapts."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from whole_runs import run

pytestmark = [pytest.mark.run]

PROMPTS, SAMPLES = 8, 4
EASY = 6
LEDGER = '''
import fcntl, json
def reward(prompt, response, answer):
    """The first prompts teach nothing; of each later group, the sample that is scored first passes."""
    with open({file!r}, "a+") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        ledger.seek(0)
        before = [json.loads(line) for line in ledger]
        ledger.write(json.dumps(prompt) + "\\n")
    prompts = list(dict.fromkeys([*before, prompt]))
    first = before.count(prompt) % {samples} == 0
    return float(first and prompts.index(prompt) >= {easy})
'''


def test_dapo_fills_each_step_with_groups_that_can_teach(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    (tmp_path / "ledger.py").write_text(LEDGER.format(file=str(ledger), samples=SAMPLES, easy=EASY))
    job = job_file(
        steps=4,
        rewards=[
            {"name": "noted", "type": "python", "threshold": 1.0, "python": {"path": "ledger.py"}}
        ],
        algorithm={
            "name": "dapo",
            "params": {
                "dynamicSampling": {"maxRounds": 8, "whenShort": "stop"},
                "overlong": {"bufferTokens": 2, "penalty": 0.5},
            },
        },
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = finished.of_kind("step")
    metrics = [step["metrics"] for step in steps]
    assert [sum(step["staleness"].values()) for step in steps] == [PROMPTS * SAMPLES] * 4
    assert any(m["dynamic_sampling/keep_rate"] < 1 for m in metrics)
    for before, after in pairwise(range(4)):
        left_over = int(metrics[before]["dynamic_sampling/left_over"])
        assert steps[after]["staleness"].get("1", 0) == left_over * SAMPLES
    assert (
        metrics[0]["dynamic_sampling/left_over"] == PROMPTS - EASY
    )  # a second round keeps all of 8
    assert metrics[3]["dynamic_sampling/left_over"] == 0  # no step comes that could take them
    asked = Counter(json.loads(line) for line in ledger.read_text().splitlines())
    assert {times % SAMPLES for times in asked.values()} == {0}
    assert len(asked) > 4 * PROMPTS


def test_dapo_fills_steps_ahead_of_the_update_within_the_bound(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger.jsonl"
    (tmp_path / "ledger.py").write_text(LEDGER.format(file=str(ledger), samples=SAMPLES, easy=EASY))
    job = job_file(
        steps=4,
        rewards=[
            {"name": "noted", "type": "python", "threshold": 1.0, "python": {"path": "ledger.py"}}
        ],
        algorithm={
            "name": "dapo",
            "params": {"dynamicSampling": {"maxRounds": 8, "whenShort": "stop"}},
        },
        accelerator={"type": "emulated", "devicesPerNode": 2},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        flow={"mode": "async", "maxStaleness": 2},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = finished.of_kind("step")
    assert [sum(step["staleness"].values()) for step in steps] == [PROMPTS * SAMPLES] * 4
    ages = {int(age) for step in steps for age in step["staleness"]}
    assert 1 in ages and max(ages) <= 2
    metrics = [step["metrics"] for step in steps]
    assert metrics[0]["dynamic_sampling/left_over"] == PROMPTS - EASY
    assert all(m["dynamic_sampling/rounds"] >= 1 for m in metrics)
    assert all(m["pass_rate"] > 0 for m in metrics)


ODD_OR_EVEN = '''
def reward(prompt, response, answer):
    """Responses of odd and of even length differ; those of some prompts all pass."""
    return float(len(response) % 2 or len(prompt) % 3 == 0)
'''


@pytest.mark.parametrize("mode", ["streaming", "async"])
def test_dapo_fills_steps_with_groups_whose_samples_go_on_from_round_to_round(
    job_file: Callable[..., Path], tmp_path: Path, mode: str
) -> None:
    (tmp_path / "lengths.py").write_text(ODD_OR_EVEN)
    changes: dict[str, Any] = {"flow": {"mode": mode, "partialRollout": {"budgetTokens": 2}}}
    if mode == "async":
        changes["accelerator"] = {"type": "emulated", "devicesPerNode": 2}
        changes["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
    job = job_file(
        steps=4,
        rewards=[
            {"name": "odd", "type": "python", "threshold": 1.0, "python": {"path": "lengths.py"}}
        ],
        algorithm={
            "name": "dapo",
            "params": {"dynamicSampling": {"maxRounds": 16, "whenShort": "stop"}},
        },
        **changes,
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = finished.of_kind("step")
    metrics = [step["metrics"] for step in steps]
    assert [sum(step["staleness"].values()) for step in steps] == [PROMPTS * SAMPLES] * 4
    assert all(0 < m["pass_rate"] < 1 for m in metrics)
    assert [m["partial_rollout/going_on"] for m in metrics] == [PROMPTS] * 4
    assert any(m["partial_rollout/mixed_share"] > 0 for m in metrics)
    assert max(m["staleness/max"] for m in metrics) >= 1


def test_rloo_pays_for_the_kl_in_the_reward_and_the_price_adapts(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    kl = {"klCoefficient": 0.05, "klIn": "reward", "klEstimator": "k1"}
    job = job_file(
        steps=3,
        algorithm={
            "name": "rloo",
            "params": {**kl, "klTarget": 0.5, "klHorizon": 64},
        },
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    metrics = [step["metrics"] for step in finished.of_kind("step")]
    price = 0.05
    for step in metrics:
        assert step["kl/coefficient"] == pytest.approx(price)
        error = min(max(step["kl"] / 0.5 - 1, -0.2), 0.2)
        price *= 1 + error * PROMPTS * SAMPLES / 64
    assert price != 0.05
