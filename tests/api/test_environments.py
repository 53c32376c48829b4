"""Jobs with games: what they need, and what excludes them."""

import pytest

from rljob_plan.plan import plan_samples

PATH = "spec.data.environment"
GUESS = {"name": "acme.guess", "maxObservationTokens": 32}
DATA = {"environment": GUESS, "stop": ["\n"]}
GAMES = {"spec.data": DATA, "spec.rewards": [{"name": "won", "type": "environment"}]}
CALC = {"name": "calc", "type": "calculator", "maxAnswerTokens": 32}
SUITE = {"name": "other", "jsonl": {"path": "other.jsonl"}}


def test_a_job_with_games_has_turns_and_a_column_more(job) -> None:
    plain, made = job(), job(GAMES)

    assert (plain.spec.most_turns, made.spec.most_turns) == (1, 8)
    assert job(GAMES | {"spec.rollout.maxTurns": 3}).spec.most_turns == 3
    more = plan_samples(made).flow.response_items - plan_samples(plain).flow.response_items
    assert more == 1


def test_a_job_without_games_says_nothing_of_them(job) -> None:
    said = job().spec

    assert "environment" not in said.data.model_dump(by_alias=True)


def test_a_game_of_textarena_has_its_name_and_its_own_arguments(job) -> None:
    arena = {"name": "textarena", "params": {"game": "Mastermind-v0", "code_length": 3}}
    data = {"environment": arena | {"maxObservationTokens": 32}}

    made = job(GAMES | {"spec.data": data}).spec.data.environment

    assert (made.params, made.concurrency) == (arena["params"], 2)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (
            {"spec.data": DATA | {"environment": {"name": "textarna"}}},
            f"{PATH}.name",
            "'textarena'",
        ),
        (
            {"spec.data": {"environment": {"name": "textarena"}}},
            f"{PATH}.params.game",
            "is missing; name a game of textarena",
        ),
        (
            {"spec.data": {"environment": GUESS | {"maxObservationTokens": 64}}},
            f"{PATH}.maxObservationTokens",
            "is 64, which leaves no room for a move in a response of 64 tokens",
        ),
        (
            {"spec.data": {"environment": GUESS | {"timeoutSeconds": 3600}}},
            f"{PATH}.timeoutSeconds",
            "is 3600, but a whole stage of a step has 3600 s",
        ),
        (
            {"spec.data": DATA | {"fewShot": {}}},
            "spec.data.fewShot",
            "whose prompts have no answers",
        ),
        ({"spec.rollout.tools": [CALC]}, PATH, "and spec.rollout.tools exclude each other"),
        ({"spec.rollout.engine": "acme.fast"}, PATH, "has no answers of the game"),
        ({"spec.update.engine": "acme.fast"}, PATH, "would train on the tokens of the game"),
        (
            {"spec.evaluation": {"suites": [SUITE]}},
            "spec.evaluation.suites[0]",
            "has no environment, but the job plays games",
        ),
        (
            {"spec.rewards": [{"name": name, "type": "environment"} for name in ("won", "too")]},
            "spec.rewards[1].type",
            "is there already; keep one",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(problems, changes, path, message) -> None:
    found = {problem.path: problem.message for problem in problems(GAMES | changes)}

    assert message in found.get(path, ""), found


def test_a_reward_of_the_game_needs_one(problems) -> None:
    rewards = {"spec.rewards": [{"name": "won", "type": "environment"}]}
    suite = {"name": "games", "environment": GUESS}

    found = problems(rewards | {"spec.evaluation": {"suites": [suite]}})

    told = {problem.path: problem.message for problem in found}
    assert "needs spec.data.environment" in told["spec.rewards[0].type"]
    assert "but the job plays no games" in told["spec.evaluation.suites[0]"]
