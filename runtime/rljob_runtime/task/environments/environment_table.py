"""Create games by the environment's name, from the table of environments. Used only in child
processes."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import cast

from rljob_api.spec.environment import Environment
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import check_members, environment_use, load
from rljob_runtime.task.environments.environment import Game

MakeGame = Callable[[], Game]
"""Creates a game that has not begun. Raises ConfigError if it cannot be created here."""


def game_maker(environment: Environment) -> MakeGame:
    """Return the function that creates an environment's games. The environment is looked up once.
    Raises ConfigError if it is missing."""
    return GAMES.get(environment.name, _extension)(environment)


def _textarena(environment: Environment) -> MakeGame:
    if find_spec("textarena") is None:
        raise ConfigError(
            "spec.data.environment.name is 'textarena', which is not installed here; pip install "
            "'rljob[textarena]' where the job runs, or name an environment of an installed package"
        )
    from rljob_runtime.task.environments.textarena_game import TextArenaGame

    return lambda: TextArenaGame(dict(environment.params or {}))


def _extension(environment: Environment) -> MakeGame:
    """Return the maker of an installed package: its factory receives the params and creates one game
    per call."""
    use = environment_use(environment.name)
    factory = load(use)

    def make() -> Game:
        game = factory(environment.params or {})
        check_members(game, Game, use)
        return cast(Game, game)

    return make


GAMES: dict[str, Callable[[Environment], MakeGame]] = {"textarena": _textarena}
