"""The table of environments: makes games by the environment's name. Used in the children alone."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import cast

from rljob_api.spec.environment import Environment
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import check_members, environment_use, load
from rljob_runtime.task.environments.environment import Game

MakeGame = Callable[[], Game]
"""Makes a game that has not begun. Raises ConfigError where it cannot be made here."""


def game_maker(environment: Environment) -> MakeGame:
    """Of an environment, which is looked up once. Raises ConfigError where it is not here."""
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
    """An installed package's: a factory that gets the params and makes one game at each call."""
    use = environment_use(environment.name)
    factory = load(use)

    def make() -> Game:
        made = factory(environment.params or {})
        check_members(made, Game, use)
        return cast(Game, made)

    return make


GAMES: dict[str, Callable[[Environment], MakeGame]] = {"textarena": _textarena}
