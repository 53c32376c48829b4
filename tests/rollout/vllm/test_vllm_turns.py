"""Samples of several turns with real vLLM: a request a turn, and what is trained on is what was drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import make_groups, run, sampling
from syllables import ENDS, RESULT_CLOSE, RESULT_OPEN, Syllables
from tool_samples import Echo, Late, both_logprobs, drawn_ids, how, turns_of
from vllm_model import small_model

from rljob_api.spec.environment import Environment
from rljob_runtime.rollout.rollout_engine import GameSettings
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.task.environments.conversation import Conversation
from rljob_runtime.task.environments.environment import GameSeed, Moved

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    small_model(vocab_size=71, initializer_range=0.02).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[VllmRollout]:
    engine = VllmRollout(
        model, dtype=torch.float32, max_sequences=6, max_length=64, seed=1, threads=1
    )
    yield engine
    engine.close()


def test_drawn_tokens_have_the_logprobs_that_training_finds_behind_the_answers(
    engine: VllmRollout, model: Path
) -> None:
    groups = make_groups()

    found = run(engine, groups, how(Late()))

    assert sum(len(sample.calls) for sample in found.values()) > 10
    answer = [RESULT_OPEN, 44, 44, RESULT_CLOSE]
    for sample in found.values():
        turns = turns_of(sample)
        assert sample.token_ids == turns[0] + [t for turn in turns[1:] for t in (*answer, *turn)]
        assert all(Syllables().decode(turn).endswith("</calc>") for turn in turns[:-1])
        assert len(sample.logprobs) == len(drawn_ids(sample)) == len(sample.versions)
    trained, rolled = both_logprobs(model, groups, found)
    torch.testing.assert_close(trained, rolled, atol=1e-3, rtol=0)


def test_limits_of_turns_and_tokens_hold(engine: VllmRollout) -> None:
    found = run(engine, make_groups(), how(Echo(), turns=2, max_response_length=20))

    assert {sample.finish for sample in found.values()} >= {"turns"}
    for sample in found.values():
        assert sample.turns <= 2 and len(sample.token_ids) <= 20 and sample.drawn[-1]
        if sample.finish == "stop":
            assert sample.token_ids[-1] in ENDS


class OneMove:
    """A game that is over behind its second move."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> "OneMove":
        return OneMove()

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        self.moves.append(text)
        done(Moved(observation="1", reward=1.0, done=len(self.moves) == 2, seconds=0.1))

    def close(self) -> None:
        self.moves.clear()

    def most_seconds(self) -> float:
        return 60.0


def test_games_are_played_to_their_end(engine: VllmRollout) -> None:
    form: Any = Conversation(Syllables(), chat=False)  # type: ignore[arg-type]
    game = GameSeed(environment=Environment(name="acme.echo", max_observation_tokens=8), seed=1)
    groups = [replace(group, game=game) for group in make_groups()]
    games = GameSettings(form=form, pool=OneMove(), most_turns=4)

    found = run(
        engine,
        groups,
        sampling(
            games=games, eos_ids=ENDS, max_response_length=40, stopped=lambda ids: ids[-1] >= 50
        ),
    )

    ended = [sample for sample in found.values() if sample.outcome and sample.outcome.done]
    assert ended
    for sample in ended:
        assert sample.outcome is not None
        assert (sample.turns, sample.outcome.reward) == (2, 2.0)
        assert len(turns_of(sample)) == 2
