"""Whom samples of several turns talk with, chosen by how they are drawn; and nobody, on devices that share a
model with one that asks for all of them."""

from collections.abc import Callable, Sequence

from torch.distributed import ProcessGroup

from rljob_runtime.rollout.agents.agent_turns import AgentDesk, AgentTurns
from rljob_runtime.rollout.game_turns import GameTurns
from rljob_runtime.rollout.rollout_engine import PlayedGame, Sampling
from rljob_runtime.rollout.tool_turns import ToolTurns
from rljob_runtime.rollout.turns import Turns
from rljob_runtime.task.environments.environment import GameSeed, Moved
from rljob_runtime.task.tools.answers import Answer


def begin_turns(
    sampling: Sampling, replica: ProcessGroup | None = None
) -> Turns | AgentTurns | None:
    """Of samples with tools, games or agents, for a call of `generate`; None where they have one turn.
    replica: as in `Turns`."""
    if sampling.agents is not None:
        assert isinstance(sampling.agents, AgentDesk), "other agents are none of the job's"
        return AgentTurns(sampling.agents)
    if sampling.tools is not None:
        return Turns(ToolTurns(sampling.tools, sampling), sampling, replica)
    if sampling.games is not None:
        return Turns(GameTurns(sampling.games, sampling), sampling, replica)
    return None


class Nobody:
    """A `ToolRunner` and a `GameRunner`, and each of its games, that answer nothing: what follows comes from
    the first device of the replica."""

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        """See ToolRunner."""

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> PlayedGame:
        """See GameRunner."""
        return self

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        """See PlayedGame."""

    def close(self) -> None:
        """See PlayedGame."""

    def most_seconds(self, calls: int = 0) -> float:
        """See ToolRunner and PlayedGame. Nobody waits for it."""
        return 0.0
