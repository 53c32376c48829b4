"""What chance decides in a simulated run: lengths, rewards and how long they take, by the seed of the run.

A sample's draw depends on its place in the training stream alone, as its tokens do in a run: neither on who
generates it nor on how often a step starts over.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rljob_api.spec.problems import InvalidJob, Problem
from rljob_runtime.dock.growing import Array
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.simulate.costs import Rewards

KEPT_BATCHES = 64
"""Draws that are kept; what was forgotten is drawn again, to the same effect."""


class Lengths(Protocol):
    """Lengths of responses, in tokens before they are cut at the longest."""

    @property
    def prompt(self) -> int | None:
        """Tokens of a prompt; None: as many as it may have."""

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        """[groups, samples]."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """mean: tokens. sigma: deviation of the logarithm; together: the share of its variance that the samples
    of a prompt have in common."""

    mean: float
    sigma: float
    together: float = 0.5
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        normal = _normal(random, groups, samples, self.together)
        found: Array = np.exp(np.log(self.mean) - self.sigma**2 / 2 + self.sigma * normal)
        return found


@dataclass(frozen=True, slots=True)
class Fixed:
    """All responses are alike."""

    tokens: float
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        return np.full((groups, samples), self.tokens)


@dataclass(frozen=True, slots=True)
class Observed:
    """As often as they were seen. tokens: of samples of a run. together: as of `LogNormal`, of the normal
    number whose place among all is the length's among the tokens."""

    tokens: tuple[int, ...]
    together: float = 0.0
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        normal = _normal(random, groups, samples, self.together)
        place = np.empty(normal.size, dtype=np.int64)
        place[np.argsort(normal, axis=None)] = np.arange(normal.size)
        shares = (place + random.random(normal.size)) / normal.size
        found: Array = np.sort(np.array(self.tokens, dtype=np.float64))[
            (shares * len(self.tokens)).astype(np.int64)
        ].reshape(normal.shape)
        return found


def _normal(random: np.random.Generator, groups: int, samples: int, together: float) -> Array:
    """Of each sample; those of a group have this share of their variance in common."""
    of_group = random.standard_normal((groups, 1)) * np.sqrt(together)
    found: Array = of_group + random.standard_normal((groups, samples)) * np.sqrt(1 - together)
    return found


def lengths_of(text: str, *, longest: int) -> Lengths:
    """`lognormal:MEAN,SIGMA`, or `fixed:TOKENS`. Raises InvalidJob."""
    kind, _, rest = text.partition(":")
    try:
        numbers = [float(part) for part in rest.split(",")]
        if kind == "lognormal" and len(numbers) == 2 and numbers[0] > 0 and 0 <= numbers[1] <= 3:
            return LogNormal(numbers[0], numbers[1])
        if kind == "fixed" and len(numbers) == 1 and 1 <= numbers[0] <= longest:
            return Fixed(numbers[0])
    except ValueError:
        pass
    message = f"{text!r} is no distribution of lengths; write lognormal:MEAN,SIGMA with a mean above 0 and a "
    message += f"sigma from 0 to 3, or fixed:TOKENS with 1 to {longest} tokens"
    raise InvalidJob([Problem("--lengths", message)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Of a batch's prompts. prompts_G, responses_GN: tokens. passed_GN: whether a sample's reward is 1;
    seconds_GN: of judging it."""

    prompts_G: Array
    responses_GN: Array
    passed_GN: Array
    seconds_GN: Array


class Draws:
    """Of one run. prompt, response: the longest ones."""

    def __init__(
        self, lengths: Lengths, rewards: Rewards, *, seed: int, prompt: int, response: int
    ) -> None:
        self._lengths, self._rewards, self._seed = lengths, rewards, seed
        self._prompt, self._response = min(lengths.prompt or prompt, prompt), response
        self._kept: OrderedDict[tuple[str, int], Drawn] = OrderedDict()

    def of(self, batch: BatchName, *, groups: int, samples: int) -> Drawn:
        """Of a step's prompts, or of an evaluation's, which are the same each time."""
        held_out = batch.kind == "eval"
        key = (f"eval:{batch.suite}", 0) if held_out else ("train", batch.draw)
        if key not in self._kept:
            self._kept[key] = self._draw(key, groups, samples)
            if len(self._kept) > KEPT_BATCHES:
                self._kept.popitem(last=False)
        return self._kept[key]

    def _draw(self, key: tuple[str, int], groups: int, samples: int) -> Drawn:
        random = np.random.default_rng(derive_seed(self._seed, "simulated", *key))
        rewards = self._rewards
        lengths = self._lengths.draw(random, groups, samples)
        share, spread = rewards.share, rewards.spread
        chances = np.clip(share + spread * random.standard_normal((groups, 1)), 0.0, 1.0)
        sigma = rewards.sigma
        seconds = np.exp(sigma * random.standard_normal((groups, samples)) - sigma**2 / 2)
        return Drawn(
            prompts_G=np.full(groups, self._prompt, dtype=np.int64),
            responses_GN=np.clip(np.rint(lengths), 1, self._response).astype(np.int64),
            passed_GN=random.random((groups, samples)) < chances,
            seconds_GN=rewards.mean_seconds * seconds,
        )
