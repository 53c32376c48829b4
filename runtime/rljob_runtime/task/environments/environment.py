"""Define the interface of an environment, and the result of a move. No torch."""

from dataclasses import dataclass
from typing import Protocol

from rljob_api.spec.environment import OUTCOME_BYTES, Environment

MAX_ERROR_CHARACTERS = OUTCOME_BYTES // 4 - 32
"""Limit of a stored error: any characters up to it fit into an outcome."""


class Game(Protocol):
    """One game of an environment; an object plays one game."""

    def reset(self, seed: int) -> str:
        """Begin the game of this seed and return the first observation.

        Everything that follows is determined by the seed, the moves, and Python's and numpy's random
        numbers, which are seeded by it.
        """
        ...

    def step(self, text: str) -> tuple[str, float, bool]:
        """Make a move with all text of a turn. Returns the next observation, the move's reward, and
        whether the game has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSeed:
    """A game that has not begun."""

    environment: Environment
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The result of a move. error: why the game cannot continue, or empty. seconds: time since the
    move, including the wait for the process."""

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a sample's game. reward: sum of its moves' rewards. done: whether the game ended
    itself, and not by a limit. seconds: time of each move."""

    reward: float
    done: bool
    error: str = ""
    seconds: tuple[float, ...] = ()
