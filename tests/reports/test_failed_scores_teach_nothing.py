"""A service that scores was down for a minute, and the run learned from its errors that all it had answered
then was wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from whole_runs import SMALL_JOB, Finished, run

REWARD = '''
def reward(prompt, response, answer):
    """Gives 1, and fails for every third text."""
    if sum(map(ord, response)) % 3 == 0:
        raise ConnectionError("the service is down")
    return 1.0
'''
MESSAGE = "reward service: ConnectionError: the service is down"


@pytest.fixture
def scored(tmp_path: Path) -> Callable[..., Finished]:
    """scored({"onError": "zero"}): a run of two steps with that reward."""

    def scored(reward: dict[str, Any], **spec: Any) -> Finished:
        (tmp_path / "reward.py").write_text(REWARD)
        rewards = [{"name": "service", "type": "python", "python": {"path": "reward.py"}, **reward}]
        job = {**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "steps": 2, "rewards": rewards, **spec}}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        return run(tmp_path / "job.yaml", tmp_path / "run")

    return scored


def metrics(finished: Finished, name: str) -> list[float]:
    return [event["metrics"][name] for event in finished.of_kind("step")]


def test_samples_whose_score_failed_count_nowhere(scored) -> None:
    finished = scored({}, evaluation={"prompts": 8, "every": 2})

    assert finished.code == 0, finished.output
    assert min(metrics(finished, "reward/errors")) > 0
    assert all(
        map(float.__ge__, metrics(finished, "reward/excluded"), metrics(finished, "reward/errors"))
    )
    for name, value in {
        "reward/mean": 1,
        "reward/std": 0,
        "pass_rate": 1,
        "groups/with_signal": 0,
    }.items():
        assert metrics(finished, name) == [value, value], name
    assert {event["accuracy"] for event in finished.of_kind("evaluation")} == {1.0}
    shown = [r for e in finished.of_kind("step") for g in e["samples"] for r in g["responses"]]
    assert {response.get("reward") for response in shown} == {None, 1.0}
    assert {event["message"] for event in finished.of_kind("reward_error")} == {MESSAGE}


def test_a_failed_score_is_0_where_the_job_says_so(scored) -> None:
    finished = scored({"onError": "zero"})

    assert finished.code == 0, finished.output
    assert metrics(finished, "reward/excluded") == [0, 0]
    assert metrics(finished, "reward/mean") == pytest.approx(
        [1 - share for share in metrics(finished, "reward/error_share")]
    )
    assert min(metrics(finished, "groups/with_signal")) > 0


def test_a_run_ends_at_the_first_failed_score_where_the_job_says_so(scored) -> None:
    finished = scored({"onError": "stop"})

    assert finished.code == 1
    assert f"a score failed: {MESSAGE} (spec.rewards[].onError: stop)" in finished.output


def test_a_group_that_a_failure_left_without_a_signal_is_drawn_again(scored) -> None:
    sampling = {
        "name": "dapo",
        "params": {"dynamicSampling": {"signal": "reward", "whenShort": "stop"}},
    }

    finished = scored({}, algorithm=sampling)

    assert finished.code == 1
    assert "rounds" in finished.output
