"""Games as prompts: the first observation of the game of each seed.

Called by the data source, by `problems` before a run, and by the warm-up. Games are begun in a child process.
"""

import atexit
from functools import lru_cache

from rljob_api.environment import Environment
from rljob_api.problems import Problem
from rljob_runtime.data.question import Question
from rljob_runtime.environments.base import GameSeed
from rljob_runtime.environments.columns import game_entry
from rljob_runtime.environments.player import Player
from rljob_runtime.errors import ConfigError

KEPT_QUESTIONS = 65_536


class GameItems:
    """The endless games of one environment, by seed."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._player: Player | None = None
        self._question = lru_cache(maxsize=KEPT_QUESTIONS)(self._make)

    def __getitem__(self, seed: int) -> Question:
        """The game of this seed. Raises ConfigError where it cannot be begun."""
        return self._question(seed)

    def demonstration(self, seed: int) -> list[tuple[str, str]]:
        """Moves that the environment shows, each with the observation behind it. Raises ConfigError."""
        return self._playing().demonstrate(seed)

    def close(self) -> None:
        """End the process."""
        if self._player is not None:
            self._player.end()
            self._player = None
            atexit.unregister(self.close)

    def _playing(self) -> Player:
        if self._player is None:
            self._player = Player(self._environment)
            atexit.register(self.close)
        return self._player

    def _make(self, seed: int) -> Question:
        begun = self._playing().first(seed)
        name = self._environment.name
        if begun.error:
            raise ConfigError(
                f"environment {name} could not begin the game of seed {seed}: {begun.error}"
            )
        if not begun.observation.strip():
            raise ConfigError(
                f"environment {name} shows nothing at the beginning of the game of seed {seed}; its first "
                "observation is the prompt"
            )
        game = GameSeed(environment=self._environment, seed=seed)
        return Question(fields={"question": begun.observation}, answer="", entry=game_entry(game))


def game_problems(environment: Environment) -> list[Problem]:
    """What is wrong with an environment that is installed; empty where a game can be begun."""
    path = "spec.data.environment"
    items = GameItems(environment)
    try:
        items[0]
    except ConfigError as error:
        return [Problem(path, str(error))]
    finally:
        items.close()
    return []
