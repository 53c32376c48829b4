"""A whole run whose samples the `openai` package plays, on a model that knows nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

AGENT = """
import openai


async def play(task, base_url, api_key):
    client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key)
    messages = [{"role": "user", "content": task["prompt"]}]
    said = ""
    for _ in range(2):
        answer = await client.chat.completions.create(model="p", messages=messages, max_tokens=6)
        said += answer.choices[0].message.content
        messages += [answer.choices[0].message, {"role": "user", "content": "?"}]
    if task["prompt"] < "d":
        raise RuntimeError("no such word")
    return len(set(said)) / 12
"""


@pytest.mark.run
def test_an_agent_is_trained_token_by_token_through_the_openai_package(
    job_file: Callable[..., Path], tmp_path: Path, untrained_model: Path
) -> None:
    (tmp_path / "play.py").write_text(AGENT)
    file = job_file(
        steps=3,
        model={"path": untrained_model.name},
        rewards=[
            {"name": "agent", "type": "agent"},
            {"name": "short", "type": "format", "pattern": {"pattern": "^.{0,9}$"}, "weight": 0.1},
        ],
        rollout={"agent": {"path": "play.py", "timeoutSeconds": 300, "concurrency": 4}},
        batch__maxResponseLength=40,
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01, "minGroupsWithSignal": 0}},
        update__optimizer={"learningRate": 0.01},
        accelerator={"type": "emulated", "devicesPerNode": 1},
        evaluation={"prompts": 8},
        checkpoint={},
    )

    finished = run(file, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 3
    for metrics in steps:
        assert (
            metrics["mismatch/max"] < 1e-3
        )  # the update's log-probs are the rollout's, in each version
        assert metrics["turns/mean"] == metrics["agent/requests"] == 2
        assert metrics["agent/left_out_share"] == 0
        assert metrics["agent/error_share"] == metrics["reward/error_share"]
        drawn = metrics["response_length/mean"]
        assert 2 < drawn <= 12 < metrics["response_length/with_messages"] <= 40
    assert any(metrics["reward/agent"] > 0 for metrics in steps)
    assert "reward agent: RuntimeError: no such word" in finished.output
    shown = finished.of_kind("step")[0]["samples"][0]
    assert all(response["text"].startswith(shown["prompt"]) for response in shown["responses"])
    assert "api_key" not in finished.output
