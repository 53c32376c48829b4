"""Create the partner of samples of several turns, by the kind of sampling.

Includes runners that never answer, for devices that share a model with the device that makes all requests.
"""

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
    """Return the turns of samples with tools, games or agents, for a call of `generate`; None where they have
    one turn. replica: as in `Turns`."""
    if sampling.agents is not None:
        assert isinstance(sampling.agents, AgentDesk), "other agents are none of the job's"
        return AgentTurns(sampling.agents)
    if sampling.tools is not None:
        return Turns(ToolTurns(sampling.tools, sampling), sampling, replica)
    if sampling.games is not None:
        return Turns(GameTurns(sampling.games, sampling), sampling, replica)
    return None


class SilentRunner:
    """A `ToolRunner` and a `GameRunner`, and each of its games, that answer nothing: replies come from the
    first device of the replica."""

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        """Do nothing. See `ToolRunner.call`."""

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> PlayedGame:
        """Return this object. See `GameRunner.begin`."""
        return self

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        """Do nothing. See `PlayedGame.move`."""

    def close(self) -> None:
        """Do nothing. See `PlayedGame.close`."""

    def most_seconds(self, calls: int = 0) -> float:
        """Return 0, since no caller waits. See `ToolRunner` and `PlayedGame`."""
        return 0.0
