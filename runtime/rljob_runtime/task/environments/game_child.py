"""A child process with the games of an environment: a line in for a move, a line out. Started by `player`.

Ends with its parent, even while a move hangs. What games print goes to stderr, so that it never mixes with
the answers. Each game has random numbers of its own: the states of `random` and numpy are put back before it
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
"""Games that are kept; the one that waited longest is forgotten first, and played again when it goes on."""
NUMPY_SEEDS = 2**32


def main() -> None:
    """Read the environment, then moves until the pipe ends."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the driver's business
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    environment = Environment.model_validate_json(json.loads(sys.stdin.readline())["environment"])
    try:
        make = game_maker(environment)
        make()
    except Exception as error:
        answers.write(json.dumps({"refused": _told(error)}) + "\n")
        return
    answers.write(json.dumps({"ready": True}) + "\n")
    games = _Games(make)
    for line in sys.stdin:
        for said in games.answers(json.loads(line)):
            answers.write(json.dumps(said) + "\n")


class _Games:
    """Those that are being played, by session."""

    def __init__(self, make: MakeGame) -> None:
        self._make = make
        self._played: OrderedDict[str, _Played] = OrderedDict()

    def answers(self, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Of a line: begin a game, move in it, or forget it; or show how those of some seeds begin, or may be
        played, an answer for each."""
        if "show" in asked:
            for seed in asked["seeds"]:
                yield self._tried(self._shown, asked["show"], seed)
        else:
            yield self._tried(self._answer, asked)

    def _tried(self, answer: Callable[..., dict[str, Any]], *asked: Any) -> dict[str, Any]:
        try:
            return answer(*asked)
        except Exception as error:
            return {"error": _told(error)}

    def _shown(self, what: str, seed: int) -> dict[str, Any]:
        if what == "demonstration":
            return {"turns": _demonstrate(self._make, seed)}
        return {"observation": _Played(self._make, seed).first}

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "close" in asked:
            return {"closed": self._played.pop(asked["close"], None) is not None}
        session, observation, reward, done = asked["session"], "", 0.0, False
        if "seed" in asked:
            played = _Played(self._make, asked["seed"])
            observation = played.first
        elif session not in self._played:
            return {"unknown": True}
        else:
            played = self._played.pop(session)
            observation, reward, done = played.move(asked["text"])
        if not done:
            self._played[session] = played
            if len(self._played) > MAX_GAMES:
                self._played.popitem(last=False)
        return {"observation": observation, "reward": reward, "done": done}


class _Played:
    """A game and its random numbers."""

    def __init__(self, make: MakeGame, seed: int) -> None:
        random.seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed % NUMPY_SEEDS)
        self._game: Game = make()
        self.first = _text(self._game.reset(seed))
        self._numbers = _numbers()

    def move(self, text: str) -> tuple[str, float, bool]:
        """Observation, reward, done. Raises what the game does, and TypeError for anything else."""
        random.setstate(self._numbers[0])
        if self._numbers[1] is not None:
            sys.modules["numpy"].random.set_state(self._numbers[1])
        observation, reward, done = self._game.step(text)
        self._numbers = _numbers()
        if not isinstance(reward, (bool, int, float)) or not math.isfinite(reward):
            raise TypeError(f"step gave the reward {reward!r}; it must be a finite number")
        return _text(observation), float(reward), bool(done)


def _told(error: Exception) -> str:
    own = isinstance(error, ConfigError)
    said = str(error) if own else f"{type(error).__name__}: {error}"
    return said.encode(errors="replace").decode()


def _text(said: object, what: str = "the observation") -> str:
    if isinstance(said, str):
        return check_text(said, what)
    raise TypeError(f"{what} is a {type(said).__name__}; it must be a text")


def _numbers() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def _demonstrate(make: MakeGame, seed: int) -> list[tuple[str, str]]:
    """Each move that the environment shows for this seed, and the observation behind it, empty behind the
    last. Raises ConfigError for an environment that shows none."""
    show = getattr(make(), "demonstrate", None)
    if show is None:
        raise ConfigError(
            "it has no `demonstrate`, from which the warm-up of builtin: tiny learns its first moves "
            "(docs/environments.md); give it one, or name a model that was trained already in "
            "spec.model.path"
        )
    random.seed(seed)
    moves, played, shown = show(seed), _Played(make, seed), []
    for number, text in enumerate(moves, 1):
        observation, _, done = played.move(_text(text, "a move that it shows"))
        shown.append((text, "" if done or number == len(moves) else observation))
        if done:
            break
    return shown


if __name__ == "__main__":
    main()
