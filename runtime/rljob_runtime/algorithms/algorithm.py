"""Define the interface of an algorithm: advantages from rewards, and a loss that is summed over
micro-batches.

The update engine calls the loss once a micro-batch; the update state calls the advantages.
"""

# B samples, T response tokens of all samples together

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts over the global batch of one optimizer step, summed over all ranks and micro-batches.

    num_tokens: response tokens. num_sequences: samples with at least one response token.
    """

    num_tokens: int
    num_sequences: int

    @classmethod
    def of(cls, batches: Iterable[SampleBatch]) -> "Totals":
        """Count the tokens and sequences of these batches."""
        lengths = [length for batch in batches for length in batch.lengths]
        return cls(num_tokens=sum(lengths), num_sequences=sum(length > 0 for length in lengths))

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            num_tokens=self.num_tokens + other.num_tokens,
            num_sequences=self.num_sequences + other.num_sequences,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A micro-batch's share of the loss: the sum over all ranks and micro-batches is the loss.

    loss: scalar with gradient, already divided by the totals that were passed. mean_over: which of these
    totals, so that a caller who learns them only later passes ones and divides the sum. token_sums:
    metrics whose sum over everything, divided by the global number of tokens, is their mean. maxima:
    metrics to be maximised over everything. Metrics are scalars without gradient.
    """

    loss: Tensor
    mean_over: Literal["tokens", "sequences"]
    token_sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


class Algorithm(Protocol):
    """The module of one algorithm. params: the algorithm's own parameters, resolved."""

    def prepare(self, samples: SampleBatch, params: Any) -> None:
        """Add what the loss reads: the scalar `advantage` or the per-token field `advantages`, and any
        other columns.

        samples: full groups, with the columns that params.fields and params.scalars name. They have the
        field `old_logprobs` if the step has several optimizer steps.
        """
        ...

    def loss(
        self, logprobs_T: Tensor, batch: SampleBatch, params: Any, totals: Totals
    ) -> LossOutput:
        """Return the micro-batch's share of the loss."""
        ...


class CriticAlgorithm(Protocol):
    """The further functions of an algorithm with a critic. params: the algorithm's own parameters,
    resolved."""

    def prepare_critic(self, samples: SampleBatch, params: Any) -> None:
        """Add the field `returns`. samples: the same as for `prepare`, without `old_logprobs`."""
        ...

    def critic_loss(
        self, values_T: Tensor, batch: SampleBatch, params: Any, totals: Totals
    ) -> LossOutput:
        """Return the micro-batch's share of the critic's loss."""
        ...
