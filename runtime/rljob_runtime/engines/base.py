"""The seam of rollout engines: token ids in, token ids and log-probs out, weights by public name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    stopped: called with the response's ids after each token when given; True ends the response.
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
    """One prompt and the samples wanted of it: one uid and one seed (63 bits) each."""

    group: str
    token_ids: list[int]
    uids: list[str]
    seeds: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A finished response.

    logprobs: natural log under softmax(logits / temperature), before top-p and top-k cut it.
    version: version of the weights that made it.
    """

    uid: str
    token_ids: list[int]
    logprobs: list[float]
    finish: Literal["stop", "length"]
    version: int


class RolloutEngine(Protocol):
    """Generates responses; holds weights in the rollout layout."""

    version: int

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield responses as they finish, several at a time; each uid once."""
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
