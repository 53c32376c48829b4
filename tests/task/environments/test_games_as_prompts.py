"""Prompts out of an environment: seeds from 0 on train, others are held out, each prompt names its game."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.spec.environment import OUTCOME_BYTES, Environment
from rljob_api.spec.evaluation import Evaluation, EvaluationSuite
from rljob_api.spec.workload import Batch, Data
from rljob_runtime.task.data.games import game_problems
from rljob_runtime.task.data.source import PromptSource, suites_of
from rljob_runtime.task.environments.environment import Outcome
from rljob_runtime.task.environments.game_columns import game_of, outcome_of, outcome_row
from rljob_runtime.task.tokenizer import ByteTokenizer

MakeEnvironment = Callable[..., Environment]


def source(environment: Environment, **changes: Any) -> PromptSource:
    return PromptSource(
        Data(environment=environment, template="{question}\n", train_size=50),
        batch=Batch(
            global_batch_size=8, samples_per_prompt=4, max_prompt_length=12, max_response_length=16
        ),
        tokenizer=ByteTokenizer(),
        seed=4,
        base_dir=Path(),
        **changes,
    )


def test_training_has_the_first_seeds_and_held_out_games_have_others(
    environment: MakeEnvironment,
) -> None:
    prompts = source(environment(), held_out=20)

    trained = {p.entry["seed"] for step in range(1, 13) for p in prompts.train(step)}
    held_out = [p.entry["seed"] for p in prompts.heldout()]

    assert trained <= set(range(50)) and len(trained) > 45
    assert len(set(held_out)) == 20 and min(held_out) > 10**9


def test_a_prompt_is_the_first_observation_of_its_game(environment: MakeEnvironment) -> None:
    countdown = environment(params={"start": 7})

    for prompt in source(countdown).train(1):
        task = np.frombuffer(json.dumps({"entry": prompt.entry}).encode(), dtype=np.uint8)
        game = game_of(task)
        assert prompt.text == f"{1 + game.seed % 7}:\n"
        assert prompt.token_ids == ByteTokenizer().encode(prompt.text)
        assert game.environment == countdown


def test_a_suite_has_games_of_its_own_environment(environment: MakeEnvironment) -> None:
    longer = environment(params={"start": 9})
    evaluation = Evaluation(suites=[EvaluationSuite(name="longer", environment=longer, prompts=18)])

    prompts = source(environment(), held_out=4, suites=suites_of(evaluation)).heldout("longer")

    assert len(prompts) == 18
    assert {p.text for p in prompts} == {f"{n}:\n" for n in range(1, 10)}
    assert {p.entry["environment"]["params"]["start"] for p in prompts} == {9}


def test_games_whose_first_observation_is_too_long_give_way_to_others(
    environment: MakeEnvironment,
) -> None:
    wide = environment(params={"width": 30})  # of every third seed

    prompts = source(wide, held_out=6)

    assert all(p.entry["seed"] % 3 != 1 for p in prompts.heldout())
    assert len(prompts.heldout()) == 6
    trained = [p.entry["seed"] for p in prompts.train(1)]
    assert all(seed % 3 != 1 for seed in trained)
    assert prompts.facts()["left_out_too_long"] > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("acme.broken", "ValueError: no board"),
        ("acme.mute", "shows nothing when the game of seed"),
        (
            "acme.half",
            "environment acme.half, game of seed 0: ValueError: the observation has half",
        ),
    ],
)
def test_what_is_wrong_with_an_environment_is_said_before_a_run(
    environment: MakeEnvironment, name: str, told: str
) -> None:
    (problem,) = game_problems(environment(name))

    assert problem.path == "spec.data.environment"
    assert told in problem.message


def test_an_outcome_fits_its_column_whatever_the_error_says() -> None:
    outcome = Outcome(reward=-1.25e-7, done=False, error='\U0001f40d\0"\\\n' * 500)

    row = outcome_row(outcome)

    assert len(row) <= OUTCOME_BYTES
    reward, error = outcome_of(row.tobytes())
    assert reward == -1.25e-7
    assert error.startswith('\U0001f40d "\\ ')
