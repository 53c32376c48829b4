"""RingAttention (arXiv:2310.01889) over packed samples in zig-zag order: causal, ragged, without masks.

Called by the attention layers of a parallel model. Keys and values go round the ranks while each
computes; the blocks add up by their log-sums (online softmax). An earlier rank's low piece of a
sample is seen by all queries, a later rank's two pieces by the high queries, both in full: only a
rank's own keys need a causal block. A prefix that several samples share is seen in full by all of theirs.
"""

# U tokens of this rank, W of the rank whose keys are here, A query heads, N key/value heads, D head width

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import rank_of
from rljob_runtime.devices.kernels.block_attention import (
    Block,
    attend_blocks,
    attend_blocks_backward,
)
from rljob_runtime.devices.wire import Pending, start_shift
from rljob_runtime.parallel.context import Half, ZigZag


def ring_attention(
    query_UAD: Tensor,
    key_UND: Tensor,
    value_UND: Tensor,
    layout: ZigZag,
    group: ProcessGroup | None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Causal attention of each sample over itself, and over its prefix, [U, A, D] → [U, A, D].

    The tensors hold `layout.tokens(rank)`. scale: default 1/√D. Kept for the backward pass: the
    inputs, the output and U·A numbers. Beside them there are keys and values of two ranks at a time, and in
    backward their float32 gradients.
    """
    num_tokens = layout.num_tokens(rank_of(group))
    assert len(query_UAD) == num_tokens, f"{len(query_UAD)} tokens, not the layout's {num_tokens}"
    scale = query_UAD.shape[-1] ** -0.5 if scale is None else scale
    ring = _Ring(layout, group, scale)
    output: Tensor = _RingAttention.apply(query_UAD, key_UND, value_UND, ring)  # type: ignore[no-untyped-call]
    return output


def ring_attention_bytes(
    layout: ZigZag, rank: int, width: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Bytes that a rank sends. width: N·D. Forward, keys and values of all ranks but the next one's;
    backward, these again and the float32 gradients of all ranks'."""
    ranks = layout.ranks
    if ranks == 1:
        return 0
    tokens = [layout.num_tokens(other) for other in range(ranks)]
    all_but_next = sum(tokens) - tokens[(rank + 1) % ranks]
    keys = 2 * all_but_next * width * item_bytes
    return keys + with_gradients * (keys + 2 * sum(tokens) * width * 4)


@dataclass(frozen=True, slots=True)
class _Ring:
    layout: ZigZag
    group: ProcessGroup | None
    scale: float

    def sources(self) -> list[int]:
        """Whose keys are here, step by step."""
        ranks = self.layout.ranks
        return [(rank_of(self.group) - step) % ranks for step in range(ranks)]

    def travel(self, key_value: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Each source and its keys and values [W, 2, N, D]; the next ones come in meanwhile."""
        sources = self.sources()
        for source, following in zip(sources, [*sources[1:], None], strict=True):
            coming: Pending | None = None
            if following is not None:
                coming = start_shift(key_value, self.room_for(following, key_value), self.group)
            yield source, key_value
            if coming is not None:
                key_value = coming.wait()

    def room_for(self, source: int, like: Tensor) -> Tensor:
        return like.new_empty(self.layout.num_tokens(source), *like.shape[1:])

    def blocks(self, source: int) -> list[Block]:
        """Queries and keys of each sample that meet now."""
        rank = rank_of(self.group)
        same, earlier = source == rank, source < rank
        own, other = self.layout.halves(rank), self.layout.halves(source)
        blocks = [
            Block(*_meeting(mine, theirs, earlier=earlier, same=same), same)
            for mine, theirs in zip(own, other, strict=True)
        ]
        for sample, prefix in self.layout.prefixes:
            blocks.append(Block(own[sample].all, other[prefix].all, False))
        return [block for block in blocks if min(block.sizes) > 0]


def _meeting(mine: Half, theirs: Half, *, earlier: bool, same: bool) -> tuple[slice, slice]:
    """The queries that see keys, and the keys that they see."""
    if same:
        return mine.all, theirs.all
    if earlier:
        return mine.all, slice(theirs.start, theirs.middle)
    return slice(mine.middle, mine.end), theirs.all


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_UAD: Tensor, key: Tensor, value: Tensor, ring: _Ring) -> Tensor:
        output_UAD = torch.zeros_like(query_UAD, dtype=torch.float32)
        log_sum_UA = output_UAD.new_full(query_UAD.shape[:2], float("-inf"))
        for source, key_value in ring.travel(torch.stack([key, value], dim=1)):
            blocks, (keys, values) = ring.blocks(source), key_value.unbind(1)
            found = attend_blocks(query_UAD, keys, values, blocks, scale=ring.scale)
            for block, (output, log_sum) in zip(blocks, found, strict=True):
                _add_block(output_UAD[block.queries], log_sum_UA[block.queries], output, log_sum)
        ctx.ring = ring
        rounded_UAD = output_UAD.to(query_UAD.dtype)
        ctx.save_for_backward(query_UAD, key, value, rounded_UAD, log_sum_UA)
        return rounded_UAD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        ring: _Ring = ctx.ring
        query_UAD, key, value, output_UAD, log_sum_UA = ctx.saved_tensors
        gradient_UAD = gradients[0].contiguous()
        query_gradient = torch.zeros_like(query_UAD, dtype=torch.float32)
        coming: Pending | None = None  # gradients of the keys that are here, by the ranks before
        for source, key_value in ring.travel(torch.stack([key, value], dim=1)):
            here = torch.zeros_like(key_value, dtype=torch.float32)
            blocks, (keys, values) = ring.blocks(source), key_value.unbind(1)
            found = attend_blocks_backward(
                gradient_UAD,
                query_UAD,
                keys,
                values,
                output_UAD,
                log_sum_UA,
                blocks,
                scale=ring.scale,
            )
            for block, (query_part, key_part, value_part) in zip(blocks, found, strict=True):
                query_gradient[block.queries] += query_part
                here[block.keys, 0] += key_part
                here[block.keys, 1] += value_part
            if coming is not None:
                here += coming.wait()
            following = (source - 1) % ring.layout.ranks
            coming = start_shift(here, ring.room_for(following, here), ring.group)
        assert coming is not None, "a ring has a rank"
        own = coming.wait().to(key.dtype)
        return query_gradient.to(query_UAD.dtype), own[:, 0], own[:, 1], None


def _add_block(
    output_QAD: Tensor, log_sum_QA: Tensor, block_QAD: Tensor, block_log_sum_QA: Tensor
) -> None:
    """Take a block of keys into the output over those before, in place."""
    total_QA = torch.logaddexp(log_sum_QA, block_log_sum_QA)
    output_QAD.mul_((log_sum_QA - total_QA).exp()[..., None])
    output_QAD.addcmul_(block_QAD.float(), (block_log_sum_QA - total_QA).exp()[..., None])
    log_sum_QA.copy_(total_QA)
