"""What engines ask of a model: log-probs of sampled tokens, and its parameters by public name."""

# T response tokens of all samples together

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rljob_runtime.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """logprobs_T: natural log of the probability of each response token, in the batch's order.

    entropy_T: entropy of the distribution in nats, without gradient; None unless asked for.
    """

    logprobs_T: Tensor
    entropy_T: Tensor | None


class PolicyModel(Protocol):
    """A causal language model that can be trained."""

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Log-probs of the batch's response tokens under softmax(logits / temperature)."""
        ...

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by Hugging Face name; tied weights once."""
        ...
