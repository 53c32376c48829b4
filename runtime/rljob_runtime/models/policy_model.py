"""What engines ask of a model: log-probs of sampled tokens, and its weights by public name."""

# T response tokens of all samples together

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """logprobs_T: natural log of the probability of each response token, in the batch's order.

    entropy_T: entropy of the distribution in nats, without gradient; None unless asked for.
    router_load: where the experts' tokens went, None for a model without experts.
    A model with a scalar head says its values in place of log-probs: each of the position that the token
    follows, and entropies of 0.
    """

    logprobs_T: Tensor
    entropy_T: Tensor | None
    router_load: RouterLoad | None = None


class PolicyModel(Protocol):
    """A causal language model that can be trained. text_ids: ids from this one on have no text, and
    probability 0."""

    text_ids: int | None

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Log-probs of the batch's response tokens under softmax(logits / temperature)."""
        ...

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as they are named in Hugging Face's files, sharing memory with the model;
        tied ones once."""
        ...

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The leaf tensors that an optimizer changes, by unique name; one may hold several of
        `named_hf_parameters`, and some of these none may hold."""
        ...

    def recompute_layers(self) -> None:
        """From here on keep of each layer only its input for the backward pass, which computes the rest
        again. Raises ConfigError for a model whose layers are not known."""
        ...
