"""Provide one-player games of the textarena package. Used only in child processes.

The package's wrappers repeat the full history in each observation. Here a player, who has read it
already, receives only what is new. The reward is what the game returns at its end, including partial
credit and penalties.
"""

from typing import Any

from rljob_runtime.errors import ConfigError

PATH = "data.environment.params"


class TextArenaGame:
    """A game of textarena. `params`: `game`, its name there, and the game's own arguments. Raises
    ConfigError for an unknown game."""

    def __init__(self, params: dict[str, Any]) -> None:
        import textarena

        self._arena = textarena
        self._name = str(params.pop("game"))
        try:
            env = textarena.make(self._name, **params)
        except ValueError as error:
            raise ConfigError(
                f"{PATH}.game is {self._name!r}, which textarena {textarena.__version__} does not have: "
                f"{error}"
            ) from error
        except TypeError as error:
            raise ConfigError(f"{PATH}: {self._name} refuses them: {error}") from error
        while isinstance(env, textarena.Wrapper):
            env = env.env
        self._env: Any = env

    def reset(self, seed: int) -> str:
        """Begin the game; see `Game.reset`."""
        try:
            self._env.reset(num_players=1, seed=seed)
        except AssertionError as error:
            raise ConfigError(f"{self._refused()} ({error})") from error
        if not isinstance(self._env.state, self._arena.SinglePlayerState):
            raise ConfigError(self._refused())
        return self._observation()

    def step(self, text: str) -> tuple[str, float, bool]:
        """Make a move; see `Game.step`."""
        done, _ = self._env.step(action=text)
        reward = float((self._env.state.rewards or {}).get(0, 0.0)) if done else 0.0
        return f"\n{self._observation()}", reward, bool(done)

    def _observation(self) -> str:
        """Return the game's messages since the last call, without the player's own texts."""
        player_action = self._arena.ObservationType.PLAYER_ACTION
        _, messages = self._env.get_observation()
        return "".join(f"{text.strip()}\n" for _, text, kind in messages if kind != player_action)

    def _refused(self) -> str:
        return f"{PATH}.game is {self._name!r}, which is not for one player; choose one that is"
