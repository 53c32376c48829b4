"""Random values of a simulated run: lengths, rewards and their durations, by the seed of the run.

A sample's values depend on its position in the training stream alone, as its tokens do in a run: neither on
the device that generates it nor on how often a step is restarted.
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

CACHED_BATCHES = 64
"""Number of cached batches; an evicted one is drawn again, with the same result."""


class Lengths(Protocol):
    """Distribution of responses' lengths, in tokens before they are cut at the maximum."""

    @property
    def prompt(self) -> int | None:
        """Return the tokens of a prompt; None: the maximum prompt length."""

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        """Draw lengths, [groups, samples]."""


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Log-normally distributed lengths of responses.

    mean: tokens. sigma: deviation of the logarithm. common_share: share of its variance that the samples of a
    prompt have in common.
    """

    mean: float
    sigma: float
    common_share: float = 0.5
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        """Draw log-normal lengths, [groups, samples]."""
        normal = _normal(random, groups, samples, self.common_share)
        lengths: Array = np.exp(np.log(self.mean) - self.sigma**2 / 2 + self.sigma * normal)
        return lengths


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Equal lengths of all responses."""

    tokens: float
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        """Return the same length for all, [groups, samples]."""
        return np.full((groups, samples), self.tokens)


@dataclass(frozen=True, slots=True)
class ObservedLengths:
    """Lengths with the frequencies of a recorded run.

    tokens: lengths of a run's samples. common_share: as in `LogNormalLengths`, of the normal variable whose
    rank selects the length among the tokens.
    """

    tokens: tuple[int, ...]
    common_share: float = 0.0
    prompt: int | None = None

    def draw(self, random: np.random.Generator, groups: int, samples: int) -> Array:
        """Draw observed lengths, [groups, samples]."""
        normal = _normal(random, groups, samples, self.common_share)
        rank = np.empty(normal.size, dtype=np.int64)
        rank[np.argsort(normal, axis=None)] = np.arange(normal.size)
        shares = (rank + random.random(normal.size)) / normal.size
        lengths: Array = np.sort(np.array(self.tokens, dtype=np.float64))[
            (shares * len(self.tokens)).astype(np.int64)
        ].reshape(normal.shape)
        return lengths


def _normal(random: np.random.Generator, groups: int, samples: int, common_share: float) -> Array:
    """Draw a normal variable per sample; those of a group share common_share of their variance."""
    of_group = random.standard_normal((groups, 1)) * np.sqrt(common_share)
    values: Array = of_group + random.standard_normal((groups, samples)) * np.sqrt(1 - common_share)
    return values


def lengths_of(text: str, *, longest: int) -> Lengths:
    """Parse `lognormal:MEAN,SIGMA` or `fixed:TOKENS`. Raises InvalidJob."""
    kind, _, arguments = text.partition(":")
    try:
        numbers = [float(argument) for argument in arguments.split(",")]
        if kind == "lognormal" and len(numbers) == 2 and numbers[0] > 0 and 0 <= numbers[1] <= 3:
            return LogNormalLengths(numbers[0], numbers[1])
        if kind == "fixed" and len(numbers) == 1 and 1 <= numbers[0] <= longest:
            return FixedLengths(numbers[0])
    except ValueError:
        pass
    message = f"{text!r} is no distribution of lengths; write lognormal:MEAN,SIGMA with a mean above 0 and a "
    message += f"sigma from 0 to 3, or fixed:TOKENS with 1 to {longest} tokens"
    raise InvalidJob([Problem("--lengths", message)])


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDraws:
    """Random values of a batch's prompts.

    prompts_G, responses_GN: tokens. passed_GN: whether a sample's reward is 1; seconds_GN: of scoring it.
    """

    prompts_G: Array
    responses_GN: Array
    passed_GN: Array
    seconds_GN: Array


class Draws:
    """Random values of one run. prompt, response: maximum lengths."""

    def __init__(
        self, lengths: Lengths, rewards: Rewards, *, seed: int, prompt: int, response: int
    ) -> None:
        self._lengths, self._rewards, self._seed = lengths, rewards, seed
        self._prompt, self._response = min(lengths.prompt or prompt, prompt), response
        self._cache: OrderedDict[tuple[str, int], BatchDraws] = OrderedDict()

    def of(self, batch: BatchName, *, groups: int, samples: int) -> BatchDraws:
        """Return the values of a step's prompts, or of an evaluation's, which are the same each time."""
        held_out = batch.kind == "eval"
        key = (f"eval:{batch.suite}", 0) if held_out else ("train", batch.draw)
        if key not in self._cache:
            self._cache[key] = self._draw(key, groups, samples)
            if len(self._cache) > CACHED_BATCHES:
                self._cache.popitem(last=False)
        return self._cache[key]

    def _draw(self, key: tuple[str, int], groups: int, samples: int) -> BatchDraws:
        random = np.random.default_rng(derive_seed(self._seed, "simulated", *key))
        rewards = self._rewards
        lengths = self._lengths.draw(random, groups, samples)
        share, spread = rewards.share, rewards.spread
        chances = np.clip(share + spread * random.standard_normal((groups, 1)), 0.0, 1.0)
        sigma = rewards.sigma
        seconds = np.exp(sigma * random.standard_normal((groups, samples)) - sigma**2 / 2)
        return BatchDraws(
            prompts_G=np.full(groups, self._prompt, dtype=np.int64),
            responses_GN=np.clip(np.rint(lengths), 1, self._response).astype(np.int64),
            passed_GN=random.random((groups, samples)) < chances,
            seconds_GN=rewards.mean_seconds * seconds,
        )
