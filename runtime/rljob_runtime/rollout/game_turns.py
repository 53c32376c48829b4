"""Turns that are moves in a game, and continue after the next observation. A `Partner` of `turns`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rljob_runtime.rollout.rollout_engine import Finish, GameSettings, Generated, Idle, Sampling
from rljob_runtime.rollout.turns import MultiTurnSample
from rljob_runtime.task.environments.environment import Moved, Outcome


class GameTurns:
    """The games of one call of `generate`, one for each sample."""

    follows = Moved

    def __init__(self, games: GameSettings, sampling: Sampling) -> None:
        self._games, self._sampling = games, sampling

    @property
    def idle(self) -> Idle:
        """The time spent waiting. See `Partner.idle`."""
        return self._games.idle

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """Return False for each row: a move ends with an end token or a stop string."""
        return [False] * len(tokens)

    def request_reply(
        self, sample: MultiTurnSample, generated: Generated, on_reply: Callable[[Moved], None]
    ) -> Finish | None:
        """Make the move, in the last turn too; a turn truncated at the longest response makes none."""
        assert sample.group.game is not None, "every prompt of a job with an environment is a game"
        sample.outcome = sample.outcome or Outcome(reward=0.0, done=False)
        if generated.finish != "stop":
            return generated.finish
        if sample.game is None:
            moves = [self._games.form.move(turn) for turn in sample.earlier_turns()]
            sample.game = self._games.pool.begin(sample.group.game, moves)
        sample.game.move(self._games.form.move(sample.turn_ids), on_reply)
        return None

    def reply_tokens(self, sample: MultiTurnSample, moved: Moved) -> list[int] | Finish:
        """Return the observation's tokens; none where the game is over, or the turn was the policy's last."""
        assert sample.outcome is not None and sample.group.game is not None, "it has moved"
        sample.outcome = replace(
            sample.outcome,
            reward=sample.outcome.reward + moved.reward,
            done=moved.done,
            error=moved.error,
            seconds=(*sample.outcome.seconds, moved.seconds),
        )
        if moved.done or moved.error:
            return "stop"
        if len(sample.ends) == self._games.most_turns:
            return "turns"
        return self._games.form.observation_ids(
            moved.observation,
            limit=sample.group.game.environment.max_observation_tokens,
            ended=sample.tokens[-1] in self._sampling.eos_ids,
        )

    def end(self, sample: MultiTurnSample) -> None:
        """Close the sample's game. See `Partner.end`."""
        if sample.game is not None and sample.outcome is not None and not sample.outcome.done:
            sample.game.close()

    def deadline(self, waiting: Sequence[MultiTurnSample]) -> tuple[float, str]:
        """Return the longest wait, and the error text. See `Partner.deadline`."""
        most = max(sample.game.most_seconds() for sample in waiting if sample.game is not None)
        problem = f"none of {len(waiting)} games (spec.data.environment) answered a move"
        return most, problem
