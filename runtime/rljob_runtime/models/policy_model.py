"""The model interface that engines use: log-probs of sampled tokens, and weights by public name."""

# T response tokens of all samples together

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log-probs of a batch's response tokens.

    logprobs_T: natural log of the probability of each response token, in the batch's order. entropy_T:
    entropy of the distribution in nats, without gradient; None unless requested. router_load: routes of the
    experts' tokens, None for a model without experts. A model with a scalar head returns its values in place
    of log-probs, each at the position before the token, and entropies of 0.
    """

    logprobs_T: Tensor
    entropy_T: Tensor | None
    router_load: RouterLoad | None = None


class PolicyModel(Protocol):
    """A causal language model that can be trained.

    text_ids: ids from this one on have no text, and probability 0.
    """

    text_ids: int | None

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Return log-probs of the batch's response tokens under softmax(logits / temperature)."""
        ...

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights under their names in Hugging Face's files, sharing the model's memory; tied ones
        once."""
        ...

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the leaf tensors that an optimizer changes, by unique name.

        One may contain several of `named_hf_parameters`, and some of these may be in none.
        """
        ...

    def recompute_layers(self) -> None:
        """From now on keep only each layer's input for the backward pass, which recomputes the other values.

        Raises ConfigError for a model whose layers are unknown.
        """
        ...
