"""The seam of rollout engines: token ids in, token ids and log-probs out, weights by public name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor

Finish = Literal["stop", "length", "budget"]
"""Why a sample ended: by itself, at the longest response, or at the limit of its group's new tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    max_response_length: of the whole response, tokens that are there already among them. stopped:
    called with the response's ids after each token when given; True ends the response.
    """

    temperature: float
    top_p: float
    top_k: int
    max_response_length: int
    eos_ids: tuple[int, ...]
    greedy: bool = False
    stopped: Callable[[list[int]], bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """One prompt and the samples wanted of it: one uid and one seed (63 bits) each.

    begun: response tokens that all these samples have already; they go on behind them. budget: most
    tokens that each makes now; None: as many as the longest response has room for.
    """

    group: str
    token_ids: list[int]
    uids: list[str]
    seeds: list[int]
    begun: list[int] = field(default_factory=list)
    budget: int | None = None

    @property
    def prefix(self) -> list[int]:
        """What a sample's next token follows."""
        return self.token_ids + self.begun

    def limit(self, sampling: Sampling) -> int:
        """Most tokens that each sample makes now, at least 1."""
        left = sampling.max_response_length - len(self.begun)
        assert left > 0, f"samples of group {self.group} have no room for another token"
        return left if self.budget is None else min(left, self.budget)

    def finish(self, stopped: bool, new_tokens: int, sampling: Sampling) -> Finish:
        """Why a sample that ended after so many new tokens did."""
        if stopped:
            return "stop"
        whole = len(self.begun) + new_tokens
        return "length" if whole >= sampling.max_response_length else "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What was made of a sample: a response, or its end where the group was begun.

    token_ids: the new tokens alone. logprobs: of these, natural log under softmax(logits /
    temperature), before top-p and top-k cut it.
    version: version of the weights that made it.
    """

    uid: str
    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    version: int


class RolloutEngine(Protocol):
    """Generates responses; holds weights in the rollout layout."""

    version: int

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Raises WeightsError if any is missing."""
        ...

    def checksum(self) -> str:
        """Checksum of the weights as held, comparable with `weights_checksum`."""
        ...

    def sleep(self) -> None:
        """Free the KV cache."""
        ...

    def wake(self) -> None:
        """Make the KV cache again."""
        ...
