"""What of a model a fused decoder computes, and how parts of one model work together.

Made by the `torch` rollout engine. Here are the forms of one device, which computes everything;
`rollout.parallel_rollout` has those of ranks that share a model.
"""

# U tokens of a pass, H hidden, V ids, I inner features

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.product import product
from rljob_runtime.models.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """A part of a decoder.

    sizes: with the heads, features, ids and number of layers of this part alone. layers: the part's, by
    their numbers in the model; experts: of each of these layers. first, last: whether it has the
    embedding, and the last norm and the head.
    """

    sizes: Architecture
    layers: range
    experts: range
    first: bool = True
    last: bool = True


class Joins(Protocol):
    """What parts of a model tell each other. All parts make the same passes in the same order."""

    def begin(self, tokens: int) -> bool:
        """A pass over so many tokens begins; whether anybody who shares experts has any."""
        ...

    def embed(self, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        """Embeddings by the first part, [U] -> [U, H]. weight_VH: of the ids that it has."""
        ...

    def arrive(self, like_UH: Tensor) -> Tensor:
        """Hidden states from the layers before a part that is not the first one, [U, H]."""
        ...

    def hand_on(self, hidden_UH: Tensor) -> None:
        """Hidden states to the layers behind a part that is not the last one."""
        ...

    def rows(self, x_UI: Tensor, weight_HI: Tensor, bias_H: Tensor | None) -> Tensor:
        """A matrix whose input features parts may share, [U, I of this part] -> [U, H]."""
        ...

    def to_experts(self, x_UH: Tensor) -> Tensor:
        """The tokens that this part's experts look at: its own, maybe among those of others."""
        ...

    def from_experts(self, output_UH: Tensor) -> Tensor:
        """Of what parts' experts made of the tokens of `to_experts`: the whole, of the own tokens."""
        ...

    def own_tokens(self, rows: Tensor) -> Tensor:
        """Of a row for each token of `to_experts`, those of the own tokens."""
        ...

    def widest(self, found: Tensor) -> Tensor:
        """Largest of what parts found in their columns of a matrix, of the same shape."""
        ...


class NoJoins:
    """One part is the whole model."""

    def begin(self, tokens: int) -> bool:
        """See Joins."""
        return tokens > 0

    def embed(self, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        """See Joins."""
        return F.embedding(tokens_U, weight_VH)

    def arrive(self, like_UH: Tensor) -> Tensor:
        """See Joins."""
        raise AssertionError("a whole model has no layers before its first one")

    def hand_on(self, hidden_UH: Tensor) -> None:
        """See Joins."""
        raise AssertionError("a whole model has no layers behind its last one")

    def rows(self, x_UI: Tensor, weight_HI: Tensor, bias_H: Tensor | None) -> Tensor:
        """See Joins."""
        return product(x_UI, weight_HI, bias_H)

    def to_experts(self, x_UH: Tensor) -> Tensor:
        """See Joins."""
        return x_UH

    def from_experts(self, output_UH: Tensor) -> Tensor:
        """See Joins."""
        return output_UH

    def own_tokens(self, rows: Tensor) -> Tensor:
        """See Joins."""
        return rows

    def widest(self, found: Tensor) -> Tensor:
        """See Joins."""
        return found


def whole_part(architecture: Architecture) -> ModelPart:
    """All of a model."""
    count = architecture.experts.count if architecture.experts else 0
    return ModelPart(
        sizes=architecture, layers=range(architecture.num_layers), experts=range(count)
    )
