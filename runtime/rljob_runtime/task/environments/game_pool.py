"""Run the games of a device: threads send the moves and receive each result before its deadline.

Created with the device's states; used by the `torch` rollout engine through `game_turns`. A game whose
process hangs, dies or raises ends with an error; others continue.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from rljob_api.spec.environment import Environment
from rljob_runtime.children.line_child import START_SECONDS
from rljob_runtime.task.environments.environment import GameSeed, Moved
from rljob_runtime.task.environments.player import GameSession, Player

log = logging.getLogger(__name__)


class GamePool:
    """The players of the job's environments. Raises ConfigError if one cannot work here."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self._tables = {
            _key(environment): _EnvironmentPlayers(environment) for environment in environments
        }

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> "OpenGame":
        """Return a new game after these moves; they are replayed with its next move."""
        return self._tables[_key(game.environment)].begin(game.seed, moves)

    def close(self) -> None:
        """End all processes; pending moves are not answered."""
        for table in self._tables.values():
            table.close()


class OpenGame:
    """A sample's game, always with the same player."""

    def __init__(self, seat: "_PlayerSeat", session: GameSession) -> None:
        self._seat, self._session = seat, session

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        """Make a move; `done` is called once with the result, in a thread of the pool."""
        called_at = time.monotonic()
        self._seat.threads.submit(lambda: done(self._seat.move(self._session, text, called_at)))

    def close(self) -> None:
        """Drop the game, since the sample has ended."""
        self._seat.threads.submit(self._seat.forget, self._session)

    def most_seconds(self) -> float:
        """Return the time within which its player is certain to answer, including a replay of the
        game."""
        return self._seat.most_seconds(len(self._session.moves))


class _EnvironmentPlayers:
    """The players of one environment, started on demand, the first one immediately."""

    def __init__(self, environment: Environment) -> None:
        self._seats = [_PlayerSeat(environment) for _ in range(environment.concurrency)]
        self._seats[0].player()
        self._turn = itertools.count()

    def begin(self, seed: int, moves: Sequence[str]) -> OpenGame:
        """Return a new game with the next player in turn; its moves are replayed with its next move."""
        number = next(self._turn)
        seat = self._seats[number % len(self._seats)]
        return OpenGame(seat, GameSession(name=str(number), seed=seed, moves=list(moves)))

    def close(self) -> None:
        """End the processes of all players; pending moves are not answered."""
        for seat in self._seats:
            seat.close()


class _PlayerSeat:
    """A player and its thread."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._player: Player | None = None
        self._closed, self._lock = False, threading.Lock()
        self.threads = ThreadPoolExecutor(1, f"environment-{environment.name}")

    def player(self) -> Player:
        """Return the player, whose process starts with the first call. Raises ConfigError if it does not
        start."""
        with self._lock:
            assert not self._closed, "a pool that was closed plays no more"
            if self._player is None:
                self._player = Player(self._environment)
            return self._player

    def move(self, session: GameSession, text: str, called_at: float) -> Moved:
        """Return the result of a move; exceptions become its `error`. called_at: monotonic time of the
        call, from which the result's seconds count."""
        try:
            moved = self.player().move(session, text)
        except Exception as error:  # a thread that raises would leave the sample waiting for ever
            log.warning("environment=%s could not be played: %s", self._environment.name, error)
            moved = Moved(error=f"it could not be played: {error}")
        return replace(moved, seconds=time.monotonic() - called_at)

    def forget(self, session: GameSession) -> None:
        """Drop the session's game in the player's process, if one was started."""
        if self._player is not None:
            self._player.forget(session)

    def most_seconds(self, moves: int) -> float:
        """Return the seconds within which a move after `moves` others is certain to be answered, replay
        included."""
        return 2 * START_SECONDS + self._environment.timeout_seconds * (moves + 2)

    def close(self) -> None:
        """Cancel waiting moves and kill the player's process; later calls of `player` fail."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            if self._player is not None:
                self._player.end()


def _key(environment: Environment) -> str:
    return environment.model_dump_json()
