"""The table of environments: makes a game by the environment's name. Used in the children alone."""

from collections.abc import Callable
from typing import cast

from rljob_api.environment import Environment
from rljob_runtime.environments.base import Game
from rljob_runtime.extensions import check_members, environment_use, load


def make_game(environment: Environment) -> Game:
    """A game that has not begun. Raises ConfigError where it cannot be made here."""
    return GAMES.get(environment.name, _extension)(environment)


def _textarena(environment: Environment) -> Game:
    from rljob_runtime.environments.textarena_game import TextArenaGame

    return TextArenaGame(dict(environment.params or {}))


def _extension(environment: Environment) -> Game:
    """An installed package's: a factory that gets the params and makes one game at each call."""
    use = environment_use(environment.name)
    made = load(use)(environment.params or {})
    check_members(made, Game, use)
    return cast(Game, made)


GAMES: dict[str, Callable[[Environment], Game]] = {"textarena": _textarena}
