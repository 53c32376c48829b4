"""PPO by whole runs: a critic in a layout of its own, a reward model, and a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from whole_runs import Finished, killed_copy, run

from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture, scorer_config
from rljob_runtime.models.loading import load_scorer
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import read_weights, save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

pytestmark = [pytest.mark.run]
PPO = {
    "steps": 4,
    "algorithm": {
        "name": "ppo",
        "params": {"klCoefficient": 0.01, "klTarget": 0.001, "klHorizon": 100},
    },
    "update__engine": "megatron",
    "critic": {"parallelism": {"tensor": 2}, "optimizer": {"learningRate": 1e-3}},
    "checkpoint": {"every": 2},
}


@pytest.fixture
def critic_model(tmp_path: Path) -> Path:
    """The directory of a model that is narrower than the policy, and of half as many layers."""
    config = {**CONFIG, "hidden_size": 64, "num_hidden_layers": 2}
    decoder = Decoder(read_architecture(config))
    decoder.initialize(1)
    save_hf(decoder.named_hf_parameters(), folder=tmp_path / "critic", config=config)
    save_byte_tokenizer(tmp_path / "critic")
    return tmp_path / "critic"


def step_metrics(finished: Finished) -> dict[int, dict[str, Any]]:
    return {event["step"]: event["metrics"] for event in finished.of_kind("step")}


def weights(folder: Path, step: int, model: str) -> dict[str, torch.Tensor]:
    return read_weights(folder / "checkpoints" / f"step-{step:06d}" / model)


@pytest.mark.nightly
def test_a_critic_on_ranks_of_its_own_learns_and_a_resumed_run_goes_on_bit_by_bit(
    job_file: Callable[..., Path], critic_model: Path, tmp_path: Path
) -> None:
    job = job_file(**PPO, critic__path=str(critic_model))
    whole = run(job, tmp_path / "whole")
    killed_copy(whole, 2, tmp_path / "half")
    resumed = run(job, tmp_path / "half", "--resume")

    for finished in (whole, resumed):
        assert finished.code == 0, finished.output
    steps = step_metrics(whole)
    assert [steps[step]["critic/gradient_norm"] > 0 for step in steps] == [True] * 4
    assert steps[4]["kl/coefficient"] != steps[1]["kl/coefficient"]
    for model in ("model", "critic/model"):
        first, last = (weights(tmp_path / "whole", step, model) for step in (2, 4))
        again = weights(tmp_path / "half", 4, model)
        assert any(not torch.equal(first[name], last[name]) for name in last)
        assert last.keys() == again.keys()
        assert all(torch.equal(last[name], again[name]) for name in last)
        shape = read_config(tmp_path / "whole" / "checkpoints" / "step-000004" / model)
        expected = (128, 4) if model == "model" else (64, 2)
        assert (shape["hidden_size"], shape["num_hidden_layers"]) == expected
    name = "kl/coefficient"
    assert [steps[s][name] for s in (3, 4)] == [step_metrics(resumed)[s][name] for s in (3, 4)]


@pytest.fixture
def reward_model(tmp_path: Path) -> Path:
    """A random one: every response has a score of its own."""
    folder = tmp_path / "reward"
    policy = Decoder(read_architecture(CONFIG))
    policy.initialize(0)
    save_hf(policy.named_hf_parameters(), folder=folder, config=CONFIG)
    scorer = load_scorer(folder, dtype=torch.float32)
    with torch.no_grad():
        scorer.score.weight.normal_(0.0, 1.0, generator=torch.Generator().manual_seed(1))
    config = scorer_config(read_config(folder), scorer.architecture)
    save_hf(scorer.named_hf_parameters(), folder=folder, config=config)
    save_byte_tokenizer(folder)
    return folder


def test_a_policy_comes_to_please_a_reward_model_on_ranks_of_its_own(
    job_file: Callable[..., Path], reward_model: Path, tmp_path: Path
) -> None:
    reward = {"path": str(reward_model), "parallelism": {"tensor": 2}}
    job = job_file(
        steps=10,
        rewards=[{"name": "liked", "type": "model", "model": reward}],
        update={"optimizer": {"learningRate": 1e-3}},
        evaluation={"prompts": 256},
        checkpoint={},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = step_metrics(finished)
    assert len(steps) == 10
    for metrics in steps.values():
        assert metrics["reward/liked"] == metrics["reward/mean"] != 0
    assert steps[1]["groups/with_signal"] > 0.5  # some have the same response four times
    before, after = (event["reward"] for event in finished.of_kind("evaluation"))
    assert after > before


def test_candidates_of_dynamic_sampling_are_chosen_by_a_reward_model(
    job_file: Callable[..., Path], reward_model: Path, tmp_path: Path
) -> None:
    reward = {"path": str(reward_model), "parallelism": {"tensor": 2}}
    sampling = {"signal": "reward", "maxRounds": 8, "whenShort": "stop"}
    job = job_file(
        steps=3,
        rewards=[{"name": "liked", "type": "model", "model": reward}],
        algorithm={"name": "dapo", "params": {"dynamicSampling": sampling}},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = step_metrics(finished)
    assert len(steps) == 3
    for metrics in steps.values():
        assert metrics["reward/liked"] == metrics["reward/mean"] != 0
    scored = [e for e in finished.of_kind("phase") if e["name"] == "reward-model"]
    rounds = sum(metrics["dynamic_sampling/rounds"] for metrics in steps.values())
    assert len(scored) >= rounds


VOWELS = """
def reward(prompt, response, answer):
    return float(sum(letter in "aeiou" for letter in response))
"""


def test_dpo_on_pairs_from_rollouts_raises_their_margin(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "vowels.py").write_text(VOWELS)
    job = job_file(
        steps=4,
        algorithm={"name": "dpo", "params": {"beta": 0.1}},
        rewards=[{"name": "vowels", "type": "python", "python": {"path": "vowels.py"}}],
        batch__epochs=4,
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = list(step_metrics(finished).values())
    margins = [metrics["pairs/margin"] for metrics in steps]
    assert margins[0] > 0  # over the epochs: in the first the policy is the reference
    assert margins[-1] > margins[0]
    assert steps[-1]["reward/mean"] > steps[0]["reward/mean"]
