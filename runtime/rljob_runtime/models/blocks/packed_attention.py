"""Attention over packed samples: prompts attend to themselves, responses to their prompt and themselves.

The attention blocks call this with queries, keys and values.
"""

# U packed tokens, A query heads, N key/value heads, D width of queries and keys, E of values

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.kernels.flash_attention import flash_attention
from rljob_runtime.models.packing import Packing


class Attend(Protocol):
    """Attention over packed samples; `attend` is the single-device version."""

    def __call__(
        self,
        query_UAD: Tensor,
        key_UND: Tensor,
        value_UNE: Tensor,
        packing: Packing,
        *,
        scale: float,
    ) -> Tensor:
        """Return the values mixed by attention, [U, A*E]."""
        ...


def attend(
    query_UAD: Tensor, key_UND: Tensor, value_UNE: Tensor, packing: Packing, *, scale: float
) -> Tensor:
    """Return values mixed by softmax(scale query key), [U, A*E]; every A / N query heads share a key head."""
    tensors = (query_UAD, key_UND, value_UNE)
    return flash_attention(*tensors, packing.sequences, scale=scale).flatten(1)
