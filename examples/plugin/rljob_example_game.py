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
        said = text.strip()
        guess = int(said) if said.isdecimal() else None
        if guess == self._number:
            return "found", 1.0, True
        hint = "?" if guess is None else "higher" if guess < self._number else "lower"
        return f"{hint}\n", 0.0, self._guesses == 0

    def demonstrate(self, seed: int) -> list[str]:
        """Guesses by chance, of which about half heed the hints: from them the warm-up of builtin: tiny
        learns what a guess looks like, and not how to win."""
        self.reset(seed)
        chance = random.Random(f"guesses {seed}")  # not those of the number
        everything = list(range(1, self._largest + 1))
        left, guesses = everything, list[int]()
        for _ in range(self._guesses):
            guess = chance.choice(left if chance.random() < 0.5 else everything)
            guesses.append(guess)
            higher = self._number > guess
            left = [n for n in left if n != guess and (n > guess) == higher] or [self._number]
        return [str(guess) for guess in guesses]
