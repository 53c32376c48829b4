"""RingAttention (arXiv:2310.01889) over packed samples in zig-zag order: causal, ragged, without masks.

Called by the attention layers of a parallel model. Keys and values circulate among the ranks while each
computes; the blocks are combined by their log-sums (online softmax). All queries attend to an earlier rank's
low chunk of a sample, the high queries to both chunks of a later rank, each in full: only a rank's local keys
need a causal block. All tokens of samples that share a prefix attend to it in full.
"""

# U tokens of this rank, W of the rank whose keys are local, A query heads, N key/value heads, D head width

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
from rljob_runtime.parallel.context import ChunkPair, ZigZag


def ring_attention(
    query_UAD: Tensor,
    key_UND: Tensor,
    value_UND: Tensor,
    layout: ZigZag,
    group: ProcessGroup | None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return causal attention of each sample over itself, and over its prefix, [U, A, D] → [U, A, D].

    The tensors hold `layout.tokens(rank)`. scale: default 1/√D. The backward pass keeps the inputs, the
    output and U·A numbers. In addition, keys and values of two ranks are in memory at a time, and in backward
    their float32 gradients.
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
    """Return the bytes that a rank sends. width: N·D. Forward sends the keys and values of all ranks but the
    next one; backward sends these again, and the float32 gradients of all ranks."""
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
        """Return the rank whose keys are local, step by step."""
        ranks = self.layout.ranks
        return [(rank_of(self.group) - step) % ranks for step in range(ranks)]

    def circulate(self, key_value: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each source with its keys and values [W, 2, N, D]; the next ones are received meanwhile."""
        sources = self.sources()
        for source, next_source in zip(sources, [*sources[1:], None], strict=True):
            pending: Pending | None = None
            if next_source is not None:
                pending = start_shift(
                    key_value, self.buffer_for(next_source, key_value), self.group
                )
            yield source, key_value
            if pending is not None:
                key_value = pending.wait()

    def buffer_for(self, source: int, like: Tensor) -> Tensor:
        """Return an empty buffer for the tokens of rank `source`; its other dimensions and type are those
        of `like`."""
        return like.new_empty(self.layout.num_tokens(source), *like.shape[1:])

    def blocks(self, source: int) -> list[Block]:
        """Return the queries and keys of each sample that meet in this step."""
        rank = rank_of(self.group)
        same, earlier = source == rank, source < rank
        local, remote = self.layout.chunk_pairs(rank), self.layout.chunk_pairs(source)
        blocks = [
            Block(*_attended_slices(local_pair, remote_pair, earlier=earlier, same=same), same)
            for local_pair, remote_pair in zip(local, remote, strict=True)
        ]
        for sample, prefix in self.layout.prefixes:
            blocks.append(Block(local[sample].all, remote[prefix].all, False))
        return [block for block in blocks if min(block.sizes) > 0]


def _attended_slices(
    query_pair: ChunkPair, key_pair: ChunkPair, *, earlier: bool, same: bool
) -> tuple[slice, slice]:
    """Return the slice of queries that attend to keys, and the slice of these keys."""
    if same:
        return query_pair.all, key_pair.all
    if earlier:
        return query_pair.all, slice(key_pair.start, key_pair.middle)
    return slice(query_pair.middle, query_pair.end), key_pair.all


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query_UAD: Tensor, key: Tensor, value: Tensor, ring: _Ring) -> Tensor:
        output_UAD = torch.zeros_like(query_UAD, dtype=torch.float32)
        log_sum_UA = output_UAD.new_full(query_UAD.shape[:2], float("-inf"))
        for source, key_value in ring.circulate(torch.stack([key, value], dim=1)):
            blocks, (keys, values) = ring.blocks(source), key_value.unbind(1)
            attended = attend_blocks(query_UAD, keys, values, blocks, scale=ring.scale)
            for block, (output, log_sum) in zip(blocks, attended, strict=True):
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
        # pending: gradients that earlier ranks computed for the keys that are local
        pending: Pending | None = None
        for source, key_value in ring.circulate(torch.stack([key, value], dim=1)):
            key_value_gradient = torch.zeros_like(key_value, dtype=torch.float32)
            blocks, (keys, values) = ring.blocks(source), key_value.unbind(1)
            attended = attend_blocks_backward(
                gradient_UAD,
                query_UAD,
                keys,
                values,
                output_UAD,
                log_sum_UA,
                blocks,
                scale=ring.scale,
            )
            for block, (query_gradient_block, key_gradient_block, value_gradient_block) in zip(
                blocks, attended, strict=True
            ):
                query_gradient[block.queries] += query_gradient_block
                key_value_gradient[block.keys, 0] += key_gradient_block
                key_value_gradient[block.keys, 1] += value_gradient_block
            if pending is not None:
                key_value_gradient += pending.wait()
            next_source = (source - 1) % ring.layout.ranks
            pending = start_shift(
                key_value_gradient, ring.buffer_for(next_source, key_value_gradient), ring.group
            )
        assert pending is not None, "a ring has a rank"
        local_gradient = pending.wait().to(key.dtype)
        return query_gradient.to(query_UAD.dtype), local_gradient[:, 0], local_gradient[:, 1], None


def _add_block(
    output_QAD: Tensor, log_sum_QA: Tensor, block_QAD: Tensor, block_log_sum_QA: Tensor
) -> None:
    """Merge a block of keys into the output over the blocks before, in place."""
    total_QA = torch.logaddexp(log_sum_QA, block_log_sum_QA)
    output_QAD.mul_((log_sum_QA - total_QA).exp()[..., None])
    output_QAD.addcmul_(block_QAD.float(), (block_log_sum_QA - total_QA).exp()[..., None])
    log_sum_QA.copy_(total_QA)
