"""Provide games as prompts: the first observation of the game of each seed.

Called by the data source, by `data_problems` before a run, and by the warm-up. Games run in a child
process.
"""

import atexit
from collections.abc import Sequence

from rljob_api.spec.environment import Environment
from rljob_api.spec.problems import Problem
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.environments.environment import GameSeed
from rljob_runtime.task.environments.game_columns import game_entry
from rljob_runtime.task.environments.player import Player

MAX_CACHED_GAMES = 65_536
"""Number of games whose first observations are cached."""


class GameItems:
    """The endless games of one environment, by seed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._player: Player | None = None
        self._first_observations: dict[int, str] = {}

    def __getitem__(self, seed: int) -> Question:
        """Return the game of this seed. Raises ConfigError if it cannot be begun."""
        if seed not in self._first_observations:
            self.begin([seed])
        game = GameSeed(environment=self._environment, seed=seed)
        return Question(
            fields={"question": self._first_observations[seed]}, answer="", entry=game_entry(game)
        )

    def begin(self, seeds: Sequence[int]) -> None:
        """Begin these games in one request, which is faster than one by one. Raises ConfigError."""
        new = [seed for seed in dict.fromkeys(seeds) if seed not in self._first_observations]
        if len(self._first_observations) + len(new) > MAX_CACHED_GAMES:
            self._first_observations.clear()
        for seed, text in zip(new, self._running_player().firsts(new), strict=True):
            if not text.strip():
                raise ConfigError(
                    f"environment {self._environment.name} shows nothing when the game of seed {seed} "
                    "begins; its first observation is the prompt"
                )
            self._first_observations[seed] = text

    def demonstrations(self, seeds: Sequence[int]) -> list[list[tuple[str, str]]]:
        """Return moves that the environment demonstrates, each with the observation after it. Raises
        ConfigError."""
        return self._running_player().demonstrations(seeds)

    def close(self) -> None:
        """End the child process."""
        if self._player is not None:
            self._player.end()
            self._player = None
            atexit.unregister(self.close)

    def _running_player(self) -> Player:
        if self._player is None:
            self._player = Player(self._environment)
            atexit.register(self.close)
        return self._player


def game_problems(environment: Environment) -> list[Problem]:
    """Return problems of an installed environment; none if a game can be begun."""
    path = "spec.data.environment"
    items = GameItems(environment)
    try:
        items[0]
    except ConfigError as error:
        return [Problem(path, str(error))]
    finally:
        items.close()
    return []
