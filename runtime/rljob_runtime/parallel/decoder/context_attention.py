"""Attention over packed samples whose tokens the context ranks share: by Ulysses, or in a ring.

`policy` sets it on the blocks; the form for one device is `models.blocks.packed_attention.attend`. Ulysses
runs that on all tokens and some of the heads, and its indices cover shared prompts. In the ring each rank has
all heads of zig-zag chunks, and keys of a prompt meet queries of all responses that continue it.
"""

# U tokens of one context rank with padding, P of all of them, A query heads, N key/value heads
# D width of queries and keys, E of values

import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.models.blocks.packed_attention import attend
from rljob_runtime.models.packing import Packing
from rljob_runtime.parallel.decoder.tokens import zig_zag
from rljob_runtime.parallel.ring import ring_attention
from rljob_runtime.parallel.ulysses import ulysses_attention


class UlyssesAttention:
    """An `Attend` by Ulysses: [U, A, D], [U, N, D], [U, N, E] → [U, A·E]. group: context ranks."""

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
        """Attend to real tokens alone; padding gets zeros."""
        real = packing.num_tokens

        def attend_all(query_PAD: Tensor, key_PND: Tensor, value_PNE: Tensor) -> Tensor:
            heads = (query_PAD[:real], key_PND[:real], value_PNE[:real])
            mixed = attend(*heads, packing, scale=scale)
            mixed = F.pad(mixed, (0, 0, 0, len(query_PAD) - real))
            return mixed.view(len(query_PAD), -1, value_PNE.shape[2])

        tokens = [len(query_UAD)] * size_of(self._group)
        mixed_UAE = ulysses_attention(
            query_UAD, key_UND, value_UNE, attend_all, tokens, self._group
        )
        return mixed_UAE.flatten(1)


class RingAttention:
    """An `Attend` in a ring: [U, A, D], [U, N, D], [U, N, E] → [U, A·E]. group: context ranks."""

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
        """Attend to real tokens; padding gets zeros. Where values are narrower than keys (latent attention),
        they are padded to the same width before they circulate."""
        layout = zig_zag(packing.segments, size_of(self._group))
        real, width = layout.num_tokens(rank_of(self._group)), query_UAD.shape[2]
        value_width = value_UNE.shape[2]
        assert value_width <= width, f"values of width {value_width}, keys of {width}"
        value_UND = F.pad(value_UNE[:real], (0, width - value_width))
        mixed_UAD = ring_attention(
            query_UAD[:real], key_UND[:real], value_UND, layout, self._group, scale=scale
        )
        mixed_UX = mixed_UAD[..., :value_width].flatten(1)
        return F.pad(mixed_UX, (0, 0, 0, len(query_UAD) - real))
