"""What an environment is, and what comes of a move. No torch."""

from dataclasses import dataclass
from typing import Protocol

from rljob_api.spec.environment import OUTCOME_BYTES, Environment

MAX_ERROR_CHARACTERS = OUTCOME_BYTES // 4 - 32
"""Of an error that is kept: whatever they are, they fit into an outcome."""


class Game(Protocol):
    """One game of an environment; an object plays one game."""

    def reset(self, seed: int) -> str:
        """Begin the game of this seed; returns the first observation. Everything that follows is decided by
        the seed and the moves, and by Python's and numpy's own random numbers, which are seeded by it."""
        ...

    def step(self, text: str) -> tuple[str, float, bool]:
        """Make a move: all text of a turn. Returns what the player sees then, the move's reward, and whether
        the game has ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSeed:
    """A game that has not begun."""

    environment: Environment
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What comes of a move. error: why the game cannot go on, empty where it can. seconds: from the move on,
    with waiting for the process."""

    observation: str = ""
    reward: float = 0.0
    done: bool = False
    error: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a sample's game ended. reward: the sum of its moves'. done: whether the game said so, and not a
    limit. seconds: of each move."""

    reward: float
    done: bool
    error: str = ""
    seconds: tuple[float, ...] = ()
