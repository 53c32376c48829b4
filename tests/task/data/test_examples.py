"""Every example is a valid job whose data, templates and rewards can be used."""

import json
from pathlib import Path

import pytest

from rljob_api.check.load import load_job
from rljob_api.check.run_rules import refusals
from rljob_api.topology.resolved import resolve
from rljob_runtime.models.tiny_recipe import PROCESSOR, VISION_CONFIG
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.pictures.processor import processor_of
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.reward_problems import reward_problems
from rljob_runtime.task.rewards.scorers import make_scorer
from rljob_runtime.task.tokenizer import ByteTokenizer, PictureByteTokenizer

EXAMPLES = Path(__file__).parents[3] / "examples"
TRAINABLE = sorted(EXAMPLES.glob("*.yaml"))


@pytest.mark.parametrize("file", TRAINABLE, ids=lambda file: file.stem)
def test_an_example_can_run_as_it_is(file: Path) -> None:
    job = load_job(file)

    assert job.metadata.name == file.stem
    assert refusals(resolve(job)) == []
    assert data_problems(job.spec.data, base_dir=EXAMPLES) == []
    assert reward_problems(job.spec.rewards, base_dir=EXAMPLES) == []


@pytest.mark.parametrize("file", TRAINABLE, ids=lambda file: file.stem)
def test_prompts_and_answers_of_an_example_fit_its_lengths(file: Path, tmp_path: Path) -> None:
    spec = load_job(file).spec
    assert spec.evaluation is not None
    tokenizer = PictureByteTokenizer() if spec.model.vision else ByteTokenizer()
    (tmp_path / "config.json").write_text(json.dumps(VISION_CONFIG))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    source = PromptSource(
        spec.data,
        batch=spec.batch,
        tokenizer=tokenizer,
        processor=processor_of(spec, tmp_path, tokenizer),
        seed=spec.seed,
        base_dir=EXAMPLES,
        held_out=spec.evaluation.prompts,
    )

    prompts = source.train(1) + source.train(2)

    facts = source.facts()
    assert facts["left_out_too_long"] == 0
    assert facts["held_out"] == facts["held_out_asked"]
    assert all(len(prompt.answer) < spec.batch.max_response_length for prompt in prompts)


def test_the_ladder_lists_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text()

    assert all(f"({file.name})" in text for file in TRAINABLE)


def test_the_example_of_a_python_reward_gives_partial_credit() -> None:
    spec = load_job(EXAMPLES / "sort-letters.yaml").spec
    reward = next(reward for reward in spec.rewards if reward.python)
    score = make_scorer(reward, spec.data, EXAMPLES)

    scores = [
        score(RewardRequest(prompt="cab>", response=response, answer="abc", entry={}))
        for response in ("abc", "abd", "abcd", "")
    ]

    assert scores == [1.0, pytest.approx(2 / 3), 0.75, 0.0]
