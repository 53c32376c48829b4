"""A game of one's own: guess a number, and be told whether it is higher or lower.

It imports nothing heavy, since every process that plays it loads it anew.
"""

import random
from typing import Any


class GuessNumber:
    """`data.environment.name: example.guess`; an object plays one game.

    params: `upTo`, the largest number; `guesses`, how many a game has.
    """

    def __init__(self, params: dict[str, Any]) -> None:
        self._largest, self._guesses = int(params.get("upTo", 7)), int(params.get("guesses", 3))
        self._number = 0

    def reset(self, seed: int) -> str:
        """The first observation, which is the prompt's {question}."""
        self._number = random.Random(seed).randint(1, self._largest)
        return f"1-{self._largest}"

    def step(self, text: str) -> tuple[str, float, bool]:
        """What is seen behind a guess, its reward, and whether the game is over. A guess that is no number
        counts as one, too."""
        self._guesses -= 1
        guess = int(text) if text.strip().isdecimal() else None
        if guess == self._number:
            return "found", 1.0, True
        hint = "?" if guess is None else "higher" if guess < self._number else "lower"
        return f"{hint}\n", 0.0, self._guesses == 0

    def demonstrate(self, seed: int) -> list[str]:
        """Guesses at random, which ignore the hints: from them the warm-up of builtin: tiny learns what a
        guess looks like, and no more."""
        chance = random.Random(f"guesses {seed}")  # not those of the number
        guesses = chance.sample(range(1, self._largest + 1), self._guesses)
        return [str(guess) for guess in guesses]
