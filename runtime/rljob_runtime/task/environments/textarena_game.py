"""Games for one player of the textarena package. Used in the children alone.

The package's wrappers repeat the whole history in each observation; here a player, who has read it already,
gets what is new. What the game gives at its end is the reward, partial credit and penalties with it.
"""

from typing import Any

from rljob_runtime.errors import ConfigError

PATH = "data.environment.params"


class TextArenaGame:
    """`params`: `game`, its name there, and arguments of its own. Raises ConfigError for an unknown one."""

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
        """See Game."""
        try:
            self._env.reset(num_players=1, seed=seed)
        except AssertionError as error:
            raise ConfigError(f"{self._refused()} ({error})") from error
        if not isinstance(self._env.state, self._arena.SinglePlayerState):
            raise ConfigError(self._refused())
        return self._seen()

    def step(self, text: str) -> tuple[str, float, bool]:
        """See Game."""
        done, _ = self._env.step(action=text)
        reward = float((self._env.state.rewards or {}).get(0, 0.0)) if done else 0.0
        return f"\n{self._seen()}", reward, bool(done)

    def _seen(self) -> str:
        """What the game has said since it was asked last, without the player's own words."""
        own = self._arena.ObservationType.PLAYER_ACTION
        _, messages = self._env.get_observation()
        return "".join(f"{text.strip()}\n" for _, text, kind in messages if kind != own)

    def _refused(self) -> str:
        return f"{PATH}.game is {self._name!r}, which is not for one player; choose one that is"
