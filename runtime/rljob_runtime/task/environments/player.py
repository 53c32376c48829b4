"""Play games of one environment in one child process, each move with a deadline.

Used by `game_pool`, one thread per player, and by the data's `games` for first observations. A process
that hangs or dies is replaced; its other games are replayed there from their seeds and moves.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_api.spec.environment import Environment
from rljob_runtime.children.line_child import LineChild, StartFailed
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.environments.environment import Moved

CHILD = "rljob_runtime.task.environments.game_child"


@dataclass(slots=True, kw_only=True)
class GameSession:
    """The state of a game. moves: those that were made. observations: the first one and that after
    each move; empty if no process has played the game yet."""

    name: str
    seed: int
    moves: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)


class Player:
    """One process with games. Raises ConfigError if it does not start or the environment cannot work
    here."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        config = json.dumps({"environment": environment.model_dump_json(by_alias=True)})
        try:
            self._child = LineChild(CHILD, config)
        except StartFailed as error:
            text = f"the process of environment {environment.name} (spec.data.environment) did not start: it "
            raise ConfigError(str(error) if error.refused else f"{text}{error}") from error

    def firsts(self, seeds: Sequence[int]) -> list[str]:
        """Return the first observations of the games of these seeds, which are not stored. Raises
        ConfigError."""
        return [answer["observation"] for answer in self._show("first", seeds)]

    def demonstrations(self, seeds: Sequence[int]) -> list[list[tuple[str, str]]]:
        """Return moves that the environment demonstrates for each seed, each with the observation
        after it. Raises ConfigError."""
        shown = self._show("demonstration", seeds)
        return [[(text, observation) for text, observation in answer["turns"]] for answer in shown]

    def move(self, session: GameSession, text: str) -> Moved:
        """Make a move in a game; a game that the process does not have is replayed first."""
        result = self._move(session, text) if session.observations else None
        if result is None:
            result = self._replay(session) or self._move(session, text)
        assert result is not None, "a game that was just played is there"
        session.moves.append(text)
        session.observations.append(result.observation)
        return result

    def forget(self, session: GameSession) -> None:
        """Drop the session's game, which does not continue."""
        self._request({"close": session.name})

    def end(self) -> None:
        """Kill the child process."""
        self._child.kill()

    def _show(self, kind: str, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        answer = self._request({"show": kind, "seeds": list(seeds)}) if seeds else {}
        for number, seed in enumerate(seeds):
            answer = answer if number == 0 else self._answer()
            if "error" in answer:
                self.end()  # its remaining answers are dropped
                name = self._environment.name
                raise ConfigError(f"environment {name}, game of seed {seed}: {answer['error']}")
            yield answer

    def _replay(self, session: GameSession) -> Moved | None:
        """Replay the game up to its current state. Returns a result with an error if this failed,
        otherwise None."""
        moved = _move_result(self._request({"session": session.name, "seed": session.seed}))
        for number, text in enumerate([None, *session.moves]):
            if text is not None:
                moved = self._move(session, text) or Moved(error="its game was lost")
            if moved.error:
                return moved
            if number == len(session.observations):
                session.observations.append(moved.observation)
            elif moved.observation != session.observations[number]:
                return Moved(
                    error=f"seed {session.seed} and the same {number} moves gave another observation when "
                    "they were played again; a game must follow from both alone"
                )
        return None

    def _move(self, session: GameSession, text: str) -> Moved | None:
        """Make a move, or return None if the process does not have the game."""
        answer = self._request({"session": session.name, "text": text})
        return None if answer.get("unknown") else _move_result(answer)

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            self._child.send(message)
        except StartFailed as error:
            return {"error": f"its process did not start again: it {error}"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        answer = self._child.answer(self._environment.timeout_seconds)
        return {"error": f"it {answer['error']}"} if answer.get("lost") else answer


def _move_result(answer: dict[str, Any]) -> Moved:
    if "error" in answer:
        return Moved(error=answer["error"])
    return Moved(observation=answer["observation"], reward=answer["reward"], done=answer["done"])
