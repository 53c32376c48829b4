"""A whole run whose samples play a game, on a model that knows nothing: its moves are bytes by chance."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import game_package
import pytest
from whole_runs import run


@pytest.mark.run
@pytest.mark.parametrize(
    "flow", [{}, {"partialRollout": {"budgetTokens": 4}}], ids=["", "in parts"]
)
def test_samples_play_games_and_what_failed_there_is_told(
    flow: dict[str, Any],
    job_file: Callable[..., Path],
    tmp_path: Path,
    untrained_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(game_package.install(tmp_path / "games"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)  # of the processes that play its game
    file = job_file(
        steps=2,
        model={"path": untrained_model.name},
        data={
            "environment": {
                "name": "acme.countdown",
                "params": {"start": 3, "fails": 5},
                "timeoutSeconds": 60,
                "maxObservationTokens": 8,
            },
            "stop": [chr(sign) for sign in range(32, 48)],
        },
        rewards=[
            {"name": "game", "type": "environment"},
            {"name": "short", "type": "format", "pattern": {"pattern": "^.{0,9}$"}, "weight": 0.1},
        ],
        rollout={"maxTurns": 3},
        batch__maxResponseLength=40,
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01, "minGroupsWithSignal": 0}},
        evaluation={"prompts": 8},
        checkpoint={},
        flow=flow,
    )

    finished = run(file, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 2
    for metrics in steps:
        assert metrics["turns/mean"] > 1
        if not metrics.get("staleness/tokens"):  # the update's log-probs are the rollout's
            assert metrics["mismatch/max"] < 1e-3
        assert metrics["reward/game"] < 0  # every wrong move costs a half
        assert 0 < metrics["environment/error_share"] < 1
        assert metrics["environment/error_share"] == metrics["reward/error_share"]
        assert metrics["environment/done_share"] > 0
        drawn = metrics["response_length/mean"]
        assert drawn < metrics["response_length/with_observations"] <= 40
    assert "reward game: RuntimeError: no such move" in finished.output
    shown = finished.of_kind("step")[0]["samples"][0]
    assert shown["prompt"] in ("1:", "2:", "3:")
    assert all(response["parts"].keys() == {"game", "short"} for response in shown["responses"])
    assert all(0 < event["n"] < 8 for event in finished.of_kind("evaluation"))  # games that failed


@pytest.mark.run
def test_a_chat_model_plays_its_games_ahead_of_the_update(
    job_file: Callable[..., Path],
    tmp_path: Path,
    untrained_chat_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = str(game_package.install(tmp_path / "games"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder)
    file = job_file(
        steps=3,
        model={"path": untrained_chat_model.name},
        data={
            "chat": True,
            "environment": {
                "name": "acme.countdown",
                "timeoutSeconds": 60,
                "maxObservationTokens": 12,
            },
            "stop": ["word1"],
        },
        rewards=[{"name": "game", "type": "environment"}],
        rollout={"maxTurns": 3},
        batch__maxResponseLength=48,
        batch__maxPromptLength=32,
        algorithm={"name": "grpo", "params": {"minGroupsWithSignal": 0}},
        evaluation={"prompts": 8},
        checkpoint={},
        accelerator={"type": "emulated", "devicesPerNode": 2},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        flow={"mode": "async", "maxStaleness": 1},
    )

    finished = run(file, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    assert any(metrics["turns/mean"] > 1 for metrics in steps)
    assert max(metrics["staleness/max"] for metrics in steps) == 1
    for metrics in steps:
        drawn = metrics["response_length/mean"]
        assert drawn <= metrics["response_length/with_observations"] <= 48
    groups = [group for event in finished.of_kind("step") for group in event["samples"]]
    assert {group["prompt"] for group in groups} <= {"1:", "2:", "3:"}
    responses = [response for group in groups for response in group["responses"]]
    told = "".join(text for response in responses for text in response["tokens"]["texts"])
    assert "<user>" in told and "<assistant>" in told  # the template's, between turns
