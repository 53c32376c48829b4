"""Attention over packed samples: of prompts, and of responses over their prompt and themselves.

Called by the attention blocks once they have queries, keys and values.
"""

# U packed tokens, A query heads, N key/value heads, D width of queries and keys, E of values

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.kernels.flash_attention import flash_attention
from rljob_runtime.models.packing import Packing


class Attend(Protocol):
    """Attention over packed samples; the form of one device is `attend`."""

    def __call__(
        self,
        query_UAD: Tensor,
        key_UND: Tensor,
        value_UNE: Tensor,
        packing: Packing,
        *,
        scale: float,
    ) -> Tensor:
        """Values mixed, [U, A*E]."""
        ...


def attend(
    query_UAD: Tensor, key_UND: Tensor, value_UNE: Tensor, packing: Packing, *, scale: float
) -> Tensor:
    """Values mixed by softmax(scale query key), [U, A*E]; every A / N query heads share a key head."""
    tensors = (query_UAD, key_UND, value_UNE)
    return flash_attention(*tensors, packing.sequences, scale=scale).flatten(1)
