"""Play the games of an environment in a child process: it reads a line per move and writes a line per
answer. Started by `player`.

Ends with its parent, even while a move hangs. Output of games goes to stderr, so that it never mixes with
the answers. Each game has its own random numbers: the states of `random` and numpy are restored before it
moves.
"""

import json
import math
import os
import random
import signal
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from rljob_api.spec.environment import Environment
from rljob_api.spec.json_text import check_text
from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.environments.environment import Game
from rljob_runtime.task.environments.environment_table import MakeGame, game_maker

MAX_GAMES = 1024
"""Number of games in memory; the least recently played one is dropped first, and replayed when it
continues."""
NUMPY_SEEDS = 2**32


def main() -> None:
    """Read the environment, then make moves until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles the terminal's Ctrl-C
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    environment = Environment.model_validate_json(json.loads(sys.stdin.readline())["environment"])
    try:
        make = game_maker(environment)
        make()
    except Exception as error:
        answers.write(json.dumps({"refused": _error_text(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    games = _Games(make)
    for line in sys.stdin:
        for answer in games.answers(json.loads(line)):
            answers.write(json.dumps(answer) + "\n")


class _Games:
    """The games that are being played, by session."""

    def __init__(self, make: MakeGame) -> None:
        self._make = make
        self._running: OrderedDict[str, _RunningGame] = OrderedDict()

    def answers(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer a line: begin a game, move in it, or close it. Or show how the games of some seeds
        begin, or may be played, with an answer for each."""
        if "show" in request:
            for seed in request["seeds"]:
                yield self._call_or_error(self._show, request["show"], seed)
        else:
            yield self._call_or_error(self._play, request)

    def _call_or_error(
        self, function: Callable[..., dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        try:
            return function(*arguments)
        except Exception as error:
            return {"error": _error_text(error)}

    def _show(self, kind: str, seed: int) -> dict[str, Any]:
        if kind == "demonstration":
            return {"turns": _demonstrate(self._make, seed)}
        return {"observation": _RunningGame(self._make, seed).first}

    def _play(self, request: dict[str, Any]) -> dict[str, Any]:
        if "close" in request:
            return {"closed": self._running.pop(request["close"], None) is not None}
        session, observation, reward, done = request["session"], "", 0.0, False
        if "seed" in request:
            game = _RunningGame(self._make, request["seed"])
            observation = game.first
        elif session not in self._running:
            return {"unknown": True}
        else:
            game = self._running.pop(session)
            observation, reward, done = game.move(request["text"])
        if not done:
            self._running[session] = game
            if len(self._running) > MAX_GAMES:
                self._running.popitem(last=False)
        return {"observation": observation, "reward": reward, "done": done}


class _RunningGame:
    """A game that has begun, with its random numbers."""

    def __init__(self, make: MakeGame, seed: int) -> None:
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed % NUMPY_SEEDS)
        self._game: Game = make()
        self.first = _text(self._game.reset(seed))
        self._random_states = _random_states()

    def move(self, text: str) -> tuple[str, float, bool]:
        """Return observation, reward, done. Raises what the game raises, and TypeError for values of
        other types."""
        random.setstate(self._random_states[0])
        if self._random_states[1] is not None:
            sys.modules["numpy"].random.set_state(self._random_states[1])
        observation, reward, done = self._game.step(text)
        self._random_states = _random_states()
        if not isinstance(reward, (bool, int, float)) or not math.isfinite(reward):
            raise TypeError(f"step gave the reward {reward!r}; it must be a finite number")
        return _text(observation), float(reward), bool(done)


def _error_text(error: Exception) -> str:
    is_config = isinstance(error, ConfigError)
    text = str(error) if is_config else f"{type(error).__name__}: {error}"
    return text.encode(errors="replace").decode()


def _text(value: object, description: str = "the observation") -> str:
    if isinstance(value, str):
        return check_text(value, description)
    raise TypeError(f"{description} is a {type(value).__name__}; it must be a text")


def _random_states() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _demonstrate(make: MakeGame, seed: int) -> list[tuple[str, str]]:
    """Return each move that the environment demonstrates for this seed, with the observation after it,
    which is empty after the last. Raises ConfigError for an environment without demonstrations."""
    show = getattr(make(), "demonstrate", None)
    if show is None:
        raise ConfigError(
            "it has no `demonstrate`, from which the warm-up of builtin: tiny learns its first moves "
            "(docs/environments.md); give it one, or name a model that was trained already in "
            "spec.model.path"
        )
    random.seed(seed)
    moves, game, shown = show(seed), _RunningGame(make, seed), []
    for number, text in enumerate(moves, 1):
        observation, _, done = game.move(_text(text, "a move that it shows"))
        shown.append((text, "" if done or number == len(moves) else observation))
        if done:
            break
    return shown


if __name__ == "__main__":
    main()
