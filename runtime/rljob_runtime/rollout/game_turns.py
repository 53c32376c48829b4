"""Turns that are moves in a game, and go on behind what is seen then. A `Partner` of `turns`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from rljob_runtime.rollout.rollout_engine import Finish, GameSettings, Generated, Idle, Sampling
from rljob_runtime.rollout.turns import OpenSample
from rljob_runtime.task.environments.environment import Moved, Outcome


class GameTurns:
    """The games of one call of `generate`, one a sample."""

    follows = Moved

    def __init__(self, games: GameSettings, sampling: Sampling) -> None:
        self._games, self._sampling = games, sampling

    @property
    def idle(self) -> Idle:
        """See Partner."""
        return self._games.idle

    def may_end(self, turn_ids: Callable[[int], list[int]], tokens: list[int]) -> list[bool]:
        """None: a move ends with an end token or a stop string."""
        return [False] * len(tokens)

    def ask(
        self, sample: OpenSample, made: Generated, said: Callable[[Moved], None]
    ) -> Finish | None:
        """Make the move, in the last turn too; one that the longest response cut is none."""
        assert sample.group.game is not None, "every prompt of a job with an environment is a game"
        sample.outcome = sample.outcome or Outcome(reward=0.0, done=False)
        if made.finish != "stop":
            return made.finish
        if sample.game is None:
            moves = [self._games.form.move(turn) for turn in sample.earlier_turns()]
            sample.game = self._games.pool.begin(sample.group.game, moves)
        sample.game.move(self._games.form.move(sample.turn_ids), said)
        return None

    def hear(self, sample: OpenSample, what: Moved) -> list[int] | Finish:
        """The observation's tokens; none where the game is over, or was the policy's last turn."""
        assert sample.outcome is not None and sample.group.game is not None, "it has moved"
        sample.outcome = replace(
            sample.outcome,
            reward=sample.outcome.reward + what.reward,
            done=what.done,
            error=what.error,
            seconds=(*sample.outcome.seconds, what.seconds),
        )
        if what.done or what.error:
            return "stop"
        if len(sample.ends) == self._games.most_turns:
            return "turns"
        return self._games.form.observation_ids(
            what.observation,
            limit=sample.group.game.environment.max_observation_tokens,
            ended=sample.tokens[-1] in self._sampling.eos_ids,
        )

    def end(self, sample: OpenSample) -> None:
        """See Partner."""
        if sample.game is not None and sample.outcome is not None and not sample.outcome.done:
            sample.game.close()

    def late(self, waiting: Sequence[OpenSample]) -> tuple[float, str]:
        """See Partner."""
        most = max(sample.game.most_seconds() for sample in waiting if sample.game is not None)
        what = f"none of {len(waiting)} games (spec.data.environment) answered a move"
        return most, what
