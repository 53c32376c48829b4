"""Attention over packed samples where context ranks share the tokens, by Ulysses.

Set on the blocks by `policy`; the form of one device is `models.blocks.packed_attention.attend`, which
runs here on all tokens and some of the heads. A shared prompt needs no care: its indices count all tokens.
"""

# U tokens of one context rank with padding, P of all of them, A query heads, N key/value heads
# D width of queries and keys, E of values

import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.backends.collectives import size_of
from rljob_runtime.models.blocks.packed_attention import attend
from rljob_runtime.models.packing import Packing
from rljob_runtime.parallel.ulysses import ulysses_attention


class SharedAttention:
    """An `Attend`: [U, A, D], [U, N, D], [U, N, E] → [U, A·E]. group: context ranks."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group

    def __call__(
        self,
        query_UAD: Tensor,
        key_UND: Tensor,
        value_UNE: Tensor,
        packing: Packing,
        *,
        scale: float,
    ) -> Tensor:
        """Real tokens alone are attended to; padding gets zeros."""
        real = packing.num_tokens

        def over_all(query_PAD: Tensor, key_PND: Tensor, value_PNE: Tensor) -> Tensor:
            heads = (query_PAD[:real], key_PND[:real], value_PNE[:real])
            mixed = attend(*heads, packing, scale=scale)
            mixed = F.pad(mixed, (0, 0, 0, len(query_PAD) - real))
            return mixed.view(len(query_PAD), -1, value_PNE.shape[2])

        tokens = [len(query_UAD)] * size_of(self._group)
        mixed_UAE = ulysses_attention(query_UAD, key_UND, value_UNE, over_all, tokens, self._group)
        return mixed_UAE.flatten(1)
