"""Games of one environment in one child process, each move with a deadline.

Used by `game_pool`, one thread a player, and by the data's `games` for first observations. A process that
hangs or dies is replaced; its other games are played again there, from their seeds by their moves.
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
class Session:
    """A game as far as it has come. moves: those that were made; seen: what was seen after each, the first
    observation before them, none of it where no process has played it yet."""

    name: str
    seed: int
    moves: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)


class Player:
    """One process. Raises ConfigError where it does not start or the environment cannot work here."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        config = json.dumps({"environment": environment.model_dump_json(by_alias=True)})
        try:
            self._child = LineChild(CHILD, config)
        except StartFailed as error:
            what = f"the process of environment {environment.name} (spec.data.environment) did not start: it "
            raise ConfigError(str(error) if error.refused else f"{what}{error}") from error

    def firsts(self, seeds: Sequence[int]) -> list[str]:
        """The first observations of the games of these seeds, which are not kept. Raises ConfigError."""
        return [said["observation"] for said in self._shown("first", seeds)]

    def demonstrations(self, seeds: Sequence[int]) -> list[list[tuple[str, str]]]:
        """Moves that the environment shows for each seed, each with the observation behind it. Raises
        ConfigError."""
        shown = self._shown("demonstration", seeds)
        return [[(text, seen) for text, seen in said["turns"]] for said in shown]

    def move(self, session: Session, text: str) -> Moved:
        """Make a move in a game; a game that the process does not have is played until there first."""
        found = self._move(session, text) if session.seen else None
        if found is None:
            found = self._again(session) or self._move(session, text)
        assert found is not None, "a game that was just played is there"
        session.moves.append(text)
        session.seen.append(found.observation)
        return found

    def forget(self, session: Session) -> None:
        """Its game goes on no more."""
        self._ask({"close": session.name})

    def end(self) -> None:
        """End the process."""
        self._child.kill()

    def _shown(self, what: str, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
        said = self._ask({"show": what, "seeds": list(seeds)}) if seeds else {}
        for place, seed in enumerate(seeds):
            said = said if place == 0 else self._answer()
            if "error" in said:
                self.end()  # which has answers that nobody hears
                name = self._environment.name
                raise ConfigError(f"environment {name}, game of seed {seed}: {said['error']}")
            yield said

    def _again(self, session: Session) -> Moved | None:
        """Play the game as far as it had come; what went wrong, or None."""
        moved = _moved(self._ask({"session": session.name, "seed": session.seed}))
        for number, text in enumerate([None, *session.moves]):
            if text is not None:
                moved = self._move(session, text) or Moved(error="its game was lost")
            if moved.error:
                return moved
            if number == len(session.seen):
                session.seen.append(moved.observation)
            elif moved.observation != session.seen[number]:
                return Moved(
                    error=f"seed {session.seed} and the same {number} moves gave another observation when "
                    "they were played again; a game must follow from both alone"
                )
        return None

    def _move(self, session: Session, text: str) -> Moved | None:
        """A move; None where the process does not have the game."""
        said = self._ask({"session": session.name, "text": text})
        return None if said.get("unknown") else _moved(said)

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            self._child.send(asked)
        except StartFailed as error:
            return {"error": f"its process did not start again: it {error}"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        said = self._child.answer(self._environment.timeout_seconds)
        return {"error": f"it {said['error']}"} if said.get("lost") else said


def _moved(said: dict[str, Any]) -> Moved:
    if "error" in said:
        return Moved(error=said["error"])
    return Moved(observation=said["observation"], reward=said["reward"], done=said["done"])
