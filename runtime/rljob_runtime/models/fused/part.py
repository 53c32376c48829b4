"""Which shard of a model a fused decoder computes, and how the shards of a model communicate.

The `torch` rollout engine creates these. This file has the single-device versions, which compute the full
model; `rollout.parallel_rollout` has those of ranks that share a model.
"""

# U tokens of a pass, H hidden, V ids, I inner features

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.models.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShard:
    """The part of a decoder that one rank computes.

    sizes: with the heads, features, ids and number of layers of this shard alone. layers: the shard's, by
    their numbers in the model; experts: of each of these layers. first, last: whether it has the embedding,
    and the last norm and the head.
    """

    sizes: Architecture
    layers: range
    experts: range
    first: bool = True
    last: bool = True


class Joins(Protocol):
    """Communication between the shards of a model. All shards make the same passes in the same order."""

    def begin(self, tokens: int) -> bool:
        """Begin a pass over so many tokens; returns whether any shard that shares experts has tokens."""
        ...

    def embed(self, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        """Return embeddings on the first shard, [U] -> [U, H]. weight_VH: of the shard's ids."""
        ...

    def arrive(self, like_UH: Tensor) -> Tensor:
        """Receive hidden states from the layers before a shard that is not the first one, [U, H]."""
        ...

    def hand_on(self, hidden_UH: Tensor) -> None:
        """Send hidden states to the layers after a shard that is not the last one."""
        ...

    def rows(self, x_UI: Tensor, weight_HI: Tensor, bias_H: Tensor | None) -> Tensor:
        """Apply a matrix whose input features shards may split, [U, I of this shard] -> [U, H]."""
        ...

    def to_experts(self, x_UH: Tensor) -> Tensor:
        """Return the tokens that this shard's experts process: its own, possibly with those of other
        shards."""
        ...

    def from_experts(self, output_UH: Tensor) -> Tensor:
        """Sum the outputs of all shards' experts and return those of the local tokens.

        output_UH: this shard's outputs for the tokens of `to_experts`.
        """
        ...

    def local_tokens(self, rows: Tensor) -> Tensor:
        """Return the rows of the local tokens. rows: one for each token of `to_experts`."""
        ...

    def widest(self, largest: Tensor) -> Tensor:
        """Return the maximum over shards of the largest value in their columns of a matrix, in the same
        shape."""
        ...


class NoJoins:
    """Joins of a model in a single shard."""

    def begin(self, tokens: int) -> bool:
        """Return whether there are tokens."""
        return tokens > 0

    def embed(self, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        """Return the embeddings of the tokens."""
        return F.embedding(tokens_U, weight_VH)

    def arrive(self, like_UH: Tensor) -> Tensor:
        """Raise AssertionError: an unsharded model has no earlier layers."""
        raise AssertionError("a whole model has no layers before its first one")

    def hand_on(self, hidden_UH: Tensor) -> None:
        """Raise AssertionError: an unsharded model has no later layers."""
        raise AssertionError("a whole model has no layers behind its last one")

    def rows(self, x_UI: Tensor, weight_HI: Tensor, bias_H: Tensor | None) -> Tensor:
        """Apply the full matrix to the tokens."""
        return product(x_UI, weight_HI, bias_H)

    def to_experts(self, x_UH: Tensor) -> Tensor:
        """Return the tokens unchanged, since all of them are local."""
        return x_UH

    def from_experts(self, output_UH: Tensor) -> Tensor:
        """Return the outputs unchanged, since all experts are local."""
        return output_UH

    def local_tokens(self, rows: Tensor) -> Tensor:
        """Return the rows unchanged, since all tokens are local."""
        return rows

    def widest(self, largest: Tensor) -> Tensor:
        """Return the values unchanged, since there is one shard."""
        return largest


def unsharded(architecture: Architecture) -> ModelShard:
    """Return the shard that is the full model."""
    count = architecture.experts.count if architecture.experts else 0
    return ModelShard(
        sizes=architecture, layers=range(architecture.num_layers), experts=range(count)
    )
