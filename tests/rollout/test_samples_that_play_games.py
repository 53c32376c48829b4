"""Samples that play games: trained on is what was drawn and seen, and a game's end is the sample's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from game_samples import AFTER, BEFORE, Echo, Echoes, Letters, games_of, how, stopped
from rollouts import run
from syllables import ENDS
from tool_samples import both_logprobs

from rljob_runtime.errors import WorkerError
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.task.environments.conversation import Conversation
from rljob_runtime.task.environments.environment import Moved

SaveReference = Callable[..., tuple[Any, Path]]


class Silent(Echo):
    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        """Never answered."""

    def most_seconds(self) -> float:
        return 0.01


class Failing(Echo):
    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        done(Moved(error="it ended its process"))


def engine_of(path: Path, **changes: Any) -> TorchRollout:
    arguments: dict[str, Any] = {"dtype": torch.float32, "max_sequences": 7, "max_length": 64}
    return TorchRollout(path, **(arguments | changes))


@pytest.fixture
def model(save_reference: SaveReference) -> Path:
    return save_reference("qwen3")[1]


def test_drawn_tokens_have_the_logprobs_that_training_finds_behind_the_observations(
    model: Path,
) -> None:
    groups = games_of()

    found = run(engine_of(model), groups, how(Echoes()))

    assert sum(sample.turns > 1 for sample in found.values()) > 10
    trained, rolled = both_logprobs(model, groups, found)
    torch.testing.assert_close(trained, rolled, atol=1e-4, rtol=0)


@pytest.mark.parametrize("chat", [False, True])
def test_a_conversation_is_what_was_drawn_and_what_was_seen_and_nothing_else(
    model: Path, chat: bool
) -> None:
    pool = Echoes()

    found = run(engine_of(model), games_of(), how(pool, chat=chat))

    played = {tuple(game.moves) for game in pool.games}
    for sample in found.values():
        rest, moves, lengths = list(sample.token_ids), [], ""
        for place in range(sample.turns):
            turn = rest[: next(n for n in range(len(rest) + 1) if at_end(rest, n))]
            rest = rest[len(turn) :]
            if place == sample.turns - 1:
                moves += [Letters().decode(turn)] * (sample.outcome.done)
                break
            moves.append(Letters().decode(turn))
            lengths += chr(47 + 40 + len(moves[-1]) % 20)
            before, after = Letters().between_turns(ended=turn[-1] in ENDS)
            put = [*before, *Letters().plain(lengths), *after] if chat else Letters().plain(lengths)
            assert rest[: len(put)] == put
            rest = rest[len(put) :]
        assert rest == []
        if sample.outcome.done:
            assert tuple(moves) in played
            assert sample.outcome.reward == sum(map(len, moves))
        assert len(sample.logprobs) == sum(sample.drawn)


def at_end(tokens: list[int], count: int) -> bool:
    """Whether the first tokens are a turn."""
    turn = tokens[:count]
    return (bool(turn) and (turn[-1] in ENDS or stopped(turn))) or count == len(tokens)


def test_the_last_turn_is_played_and_the_game_is_left(model: Path) -> None:
    pool = Echoes(length=9)

    found = run(engine_of(model), games_of(), how(pool, turns=2, max_response_length=40))

    cut = [sample for sample in found.values() if sample.finish == "turns"]
    assert cut
    for sample in cut:
        assert (sample.turns, len(sample.outcome.seconds), sample.outcome.done) == (2, 2, False)
        assert sample.drawn[-1]
    assert len(pool.log) == len(pool.games) == sum(bool(s.outcome.seconds) for s in found.values())


def test_a_move_that_the_longest_response_cuts_is_not_made(model: Path) -> None:
    pool = Echoes()

    found = run(engine_of(model), games_of(), how(pool, max_response_length=6))

    cut = [s for s in found.values() if s.finish == "length" and s.turns == 1]
    assert any(not sample.outcome.seconds for sample in cut)
    assert all(len(sample.token_ids) <= 6 and sample.drawn[-1] for sample in found.values())


def test_samples_of_a_group_play_the_same_game_each_for_itself(model: Path) -> None:
    pool, groups = Echoes(), games_of()

    found = run(engine_of(model), groups, how(pool))

    seeds = sorted(game.seed for game in pool.games)
    moved = [
        group.game.seed for group in groups for uid in group.uids if found[uid].outcome.seconds
    ]
    assert seeds == sorted(moved) and len(moved) > len(groups)


def test_a_game_that_fails_ends_its_sample_with_the_error(model: Path) -> None:
    found = run(engine_of(model), games_of(), how(Echoes(game=Failing)))

    failed = [sample for sample in found.values() if sample.outcome.error]
    assert failed
    for sample in failed:
        assert (sample.outcome.error, sample.outcome.reward) == ("it ended its process", 0.0)
        assert (sample.turns, sample.finish) == (1, "stop")


def test_moves_that_nobody_answers_are_an_error(model: Path) -> None:
    with pytest.raises(WorkerError, match=r"games \(spec.data.environment\) answered a move in"):
        run(engine_of(model), games_of(), how(Echoes(game=Silent)))


def test_a_long_observation_is_cut_and_the_template_stays_around_it() -> None:
    def observation(chat: bool) -> list[int]:
        form = Conversation(Letters(), chat=chat)  # type: ignore[arg-type]
        return form.observation_ids(" " * chat + "W" * 30, limit=8, ended=False)

    cut = Letters().plain("WWWWW...")
    assert observation(chat=False) == cut
    assert observation(chat=True) == [ENDS[0], *BEFORE, *cut, *AFTER]
