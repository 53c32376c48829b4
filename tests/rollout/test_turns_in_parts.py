"""Samples of several turns that go on in the next step are those of one part, wherever they were cut."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import game_samples
import pytest
import tool_samples
import torch
from rollouts import make_groups, run

from rljob_runtime.prompts.pool_rows import PoolSample
from rljob_runtime.rollout.rollout_engine import PromptGroup, RolloutEngine, Sampling
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.task.environments.environment import Outcome

SaveReference = Callable[..., tuple[Any, Path]]
BUDGETS = (1, 3, 7)


class Parts:
    """Samples as a partial rollout has them, and what their tools and games gave."""

    def __init__(self, groups: list[PromptGroup]) -> None:
        self.groups = groups
        self.samples = {uid: PoolSample() for group in groups for uid in group.uids}
        self.outcomes: dict[str, Outcome | None] = {}
        self.calls = dict.fromkeys(self.samples, 0)
        self.turns = dict.fromkeys(self.samples, 0)
        self.moves = dict.fromkeys(self.samples, 0)
        self.parts = 0

    def run(self, engine: RolloutEngine, how: Sampling, budget: int) -> None:
        """All of them to their ends."""
        while left := [uid for uid, sample in self.samples.items() if not sample.end]:
            self.parts += 1
            asked = [self._part(uid, budget) for uid in left]
            for uid, made in run(engine, asked, how).items():
                sample = self.samples[uid]
                sample.add(made.token_ids, made.logprobs, made.versions, made.drawn)
                sample.ends, self.outcomes[uid] = made.ends, made.outcome
                sample.end = "" if made.finish == "budget" else made.finish
                self.calls[uid] += len(made.calls)
                self.turns[uid] += made.turns
                self.moves[uid] += len(made.outcome.seconds) if made.outcome else 0

    def _part(self, uid: str, budget: int) -> PromptGroup:
        sample = self.samples[uid]
        group = next(group for group in self.groups if uid in group.uids)
        outcome = self.outcomes.get(uid)
        return replace(
            group,
            uids=[uid],
            seeds=[group.seeds[group.uids.index(uid)]],
            begun=list(sample.tokens),
            drawn=list(sample.drawn),
            ends=list(sample.ends),
            turn=sample.turn,
            budget=budget,
            outcome=Outcome(reward=outcome.reward, done=False) if outcome else None,
        )


@pytest.fixture
def engine(save_reference: SaveReference) -> TorchRollout:
    path = save_reference("qwen3")[1]
    return TorchRollout(path, dtype=torch.float32, max_sequences=7, max_length=64)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("turns", [2, 4])
def test_calls_of_tools_are_made_once_wherever_a_turn_is_cut(
    engine: TorchRollout, budget: int, turns: int
) -> None:
    groups = make_groups()
    whole = run(engine, groups, tool_samples.how(tool_samples.Echo(), turns))
    parts = Parts(groups)

    parts.run(engine, tool_samples.how(tool_samples.Echo(), turns), budget)

    assert parts.parts > 3
    for uid, sample in parts.samples.items():
        expected = whole[uid]
        assert (sample.tokens, sample.drawn) == (expected.token_ids, expected.drawn)
        assert (sample.ends, sample.end) == (expected.ends, expected.finish)
        assert sample.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        assert (parts.calls[uid], parts.turns[uid]) == (len(expected.calls), expected.turns)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("chat", [False, True])
def test_games_go_on_by_their_moves(engine: TorchRollout, budget: int, chat: bool) -> None:
    groups = game_samples.games_of()
    whole = run(engine, groups, game_samples.how(game_samples.Echoes(), chat=chat))
    parts = Parts(groups)

    parts.run(engine, game_samples.how(game_samples.Echoes(), chat=chat), budget)

    assert any(sample.turns > 1 for sample in whole.values())
    for uid, sample in parts.samples.items():
        expected, outcome = whole[uid], parts.outcomes[uid]
        assert (sample.tokens, sample.drawn) == (expected.token_ids, expected.drawn)
        assert (sample.ends, sample.end) == (expected.ends, expected.finish)
        assert outcome is not None and expected.outcome is not None
        assert (outcome.reward, outcome.done) == (expected.outcome.reward, expected.outcome.done)
        assert parts.moves[uid] == len(expected.outcome.seconds)
        assert parts.turns[uid] == expected.turns


class Wordless(game_samples.Echo):
    """Shows nothing, so that nothing stands between two turns."""

    def move(self, text: str, done: Callable[[Any], None]) -> None:
        super().move(text, lambda moved: done(replace(moved, observation="")))


def test_turns_with_nothing_between_stay_apart(engine: TorchRollout) -> None:
    groups = game_samples.games_of()
    pool = game_samples.Echoes(game=Wordless)
    parts = Parts(groups)

    parts.run(engine, game_samples.how(pool), 1)

    whole = run(engine, groups, game_samples.how(game_samples.Echoes(game=Wordless)))
    assert {uid: s.ends for uid, s in parts.samples.items()} == {
        uid: s.ends for uid, s in whole.items()
    }
    assert any(len(sample.ends) == 3 for sample in whole.values())
    assert all(not game.left or game.left + len(game.moves) == 3 for game in pool.games)
