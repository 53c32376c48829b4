"""What a vision tower gives a decoder: rows in place of embeddings, and more to add behind its first layers.

Made by a `Tower`; carried by a packing.
"""

# U packed tokens, P tokens that stand for pictures, H hidden

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictured:
    """places_P: which rows of hidden states stand for pictures. features_PH: in place of their embeddings.
    added: [P, H] each, for the outputs of the first layers (DeepStack, arXiv:2406.04334)."""

    places_P: Tensor
    features_PH: Tensor
    added: tuple[Tensor, ...] = ()

    def enter(self, hidden_UH: Tensor) -> Tensor:
        """Embeddings, with those of pictures."""
        features_PH = self.features_PH.to(hidden_UH.dtype)
        return hidden_UH.index_copy(0, self.places_P, features_PH)

    def follow(self, layer: int, hidden_UH: Tensor) -> Tensor:
        """Hidden states behind a layer, with what is added there."""
        if layer >= len(self.added):
            return hidden_UH
        return hidden_UH.index_add(0, self.places_P, self.added[layer].to(hidden_UH.dtype))

    def cut(self, row_of_U: Tensor) -> "Pictured":
        """For who has some of the tokens. row_of_U: of each packed token there, -1 where it is another's."""
        row_of_P = row_of_U[self.places_P]
        own_P = row_of_P >= 0
        return Pictured(
            places_P=row_of_P[own_P],
            features_PH=self.features_PH[own_P],
            added=tuple(rows_PH[own_P] for rows_PH in self.added),
        )
