"""Games that show how long the moves were, all at once, and samples that play them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rollouts import make_groups, sampling
from syllables import ENDS, LETTERS

from rljob_api.spec.environment import Environment
from rljob_runtime.rollout.rollout_engine import GameSettings, PromptGroup, Sampling
from rljob_runtime.task.environments.conversation import Conversation
from rljob_runtime.task.environments.environment import GameSeed, Moved

GAME = Environment(name="acme.echo", max_observation_tokens=8)
BEFORE, AFTER = [5, 6], [7]


class Letters:
    """71 tokens, each a sign of its own; a message of the chat stands between BEFORE and AFTER."""

    eos_ids = ENDS
    vocab_size = 71

    def decode(self, ids: Any) -> str:
        return "".join(chr(token + 40) for token in ids if token not in ENDS)

    def plain(self, text: str) -> list[int]:
        return [max(ord(sign) - 40, 0) for sign in text]

    def between_turns(self, *, ended: bool) -> tuple[list[int], list[int]]:
        return ([] if ended else [ENDS[0]]) + BEFORE, AFTER

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    continuation = chat = encode


class Echo:
    """A game that shows how long the moves were so far, and is over behind `length` moves; all at once, in
    the calling thread."""

    def __init__(self, log: list[Any], seed: int, length: int) -> None:
        self.log, self.seed, self.left = log, seed, length
        self.moves: list[str] = []

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        self.moves.append(text)
        self.left -= 1
        seen = "".join(chr(47 + 40 + len(move) % 20) for move in self.moves)
        done(Moved(observation=seen, reward=float(len(text)), done=self.left == 0, seconds=0.1))

    def close(self) -> None:
        self.log.append(("closed", self.seed))

    def most_seconds(self) -> float:
        return 60.0


class Echoes:
    """Plays `Echo`, or what is like it, for `length` moves."""

    def __init__(self, length: int = 3, game: type[Echo] = Echo) -> None:
        self.length, self.game = length, game
        self.games: list[Echo] = []
        self.log: list[Any] = []

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> Echo:
        self.games.append(self.game(self.log, game.seed, self.length - len(moves)))
        self.games[-1].moves += moves
        return self.games[-1]


def games_of() -> list[PromptGroup]:
    """A game a group."""
    groups = make_groups()
    return [
        replace(group, game=GameSeed(environment=GAME, seed=number))
        for number, group in enumerate(groups)
    ]


def how(pool: Any, *, turns: int = 4, chat: bool = False, **changes: Any) -> Sampling:
    """Drawn with these games."""
    settings = GameSettings(form=Conversation(Letters(), chat=chat), pool=pool, most_turns=turns)  # type: ignore[arg-type]
    given: dict[str, Any] = {"eos_ids": ENDS, "max_response_length": 40, "stopped": stopped}
    return sampling(games=settings, **(given | changes))


def stopped(ids: list[int]) -> bool:
    """As a stop string would: at 8 of the 71 tokens."""
    return ids[-1] in LETTERS and ids[-1] >= 63
