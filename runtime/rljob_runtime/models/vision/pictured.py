"""A vision tower's output for a decoder: rows that replace embeddings, and rows added after its first layers.

A `VisionTower` creates it, and a packing carries it.
"""

# U packed tokens, P tokens that stand for pictures, H hidden

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictured:
    """Features of pictures for a packing.

    places_P: rows of hidden states that are placeholders for pictures. features_PH: replace their embeddings.
    added: [P, H] each, added to the outputs of the first layers (DeepStack, arXiv:2406.04334).
    """

    places_P: Tensor
    features_PH: Tensor
    added: tuple[Tensor, ...] = ()

    def enter(self, hidden_UH: Tensor) -> Tensor:
        """Replace the embeddings of picture tokens by their features."""
        features_PH = self.features_PH.to(hidden_UH.dtype)
        return hidden_UH.index_copy(0, self.places_P, features_PH)

    def follow(self, layer: int, hidden_UH: Tensor) -> Tensor:
        """Return hidden states after a layer, with the features that are added there."""
        if layer >= len(self.added):
            return hidden_UH
        return hidden_UH.index_add(0, self.places_P, self.added[layer].to(hidden_UH.dtype))

    def cut(self, row_of_U: Tensor) -> "Pictured":
        """Return the features for a rank that has some of the tokens.

        row_of_U: row of each packed token on that rank, -1 if it is on another rank.
        """
        row_of_P = row_of_U[self.places_P]
        is_local_P = row_of_P >= 0
        return Pictured(
            places_P=row_of_P[is_local_P],
            features_PH=self.features_PH[is_local_P],
            added=tuple(rows_PH[is_local_P] for rows_PH in self.added),
        )
