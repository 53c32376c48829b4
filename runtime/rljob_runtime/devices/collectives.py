"""The collectives of data parallel training, and the exchange of texts and bytes between ranks.

`group` None means one rank: the functions do nothing.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collective_notes import NOTES

BUCKET_BYTES = 32 * 2**20


def rank_of(group: ProcessGroup | None) -> int:
    """Return this process' rank in the group."""
    return 0 if group is None else group.rank()


def size_of(group: ProcessGroup | None) -> int:
    """Return the number of ranks in the group."""
    return 1 if group is None else group.size()


def sum_over_ranks(values: Tensor, group: ProcessGroup | None) -> None:
    """Replace a flat tensor [n] by its sum over the group's ranks, [n] → [n], in place.

    Each rank sends and receives about 2·bytes·(ranks − 1)/ranks, one bucket after the other. gloo's ring adds
    in the order of ranks and distributes the sum: all ranks have the same bits, also in the next run.
    """
    if group is None:
        return
    for bucket in torch.split(values, BUCKET_BYTES // values.element_size()):
        with NOTES.of(group).blocking("all_reduce sum", bucket):
            dist.all_reduce(bucket, op=dist.ReduceOp.SUM, group=group)


def max_over_ranks(values: Tensor, group: ProcessGroup | None) -> None:
    """Replace a flat tensor [n] by its maximum over the group's ranks, [n] → [n], in place."""
    if group is not None and len(values):
        with NOTES.of(group).blocking("all_reduce max", values):
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)


def texts_over_ranks(text: str, group: ProcessGroup | None) -> list[str]:
    """Return all ranks' texts by rank; the list is equal on all ranks. No text ends in a zero byte.

    Ranks exchange the longest length, then padded texts of that length. Bytes that are no valid UTF-8 are
    replaced by other characters, so that a signature of the text does not match.
    """
    if group is None:
        return [text]
    content = text.encode()
    longest = torch.tensor([len(content)])
    max_over_ranks(longest, group)
    padded = torch.zeros(int(longest), dtype=torch.uint8)
    padded[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[
        : len(content)
    ]
    texts = [torch.empty_like(padded) for _ in range(size_of(group))]
    if len(padded):
        with NOTES.of(group).blocking("all_gather", padded):
            dist.all_gather(texts, padded, group=group)
    return [bytes(rank.tolist()).rstrip(b"\0").decode(errors="replace") for rank in texts]


def union_over_ranks(names: Iterable[str], group: ProcessGroup | None) -> list[str]:
    """Return all ranks' names in the order of ranks, each once; equal on all ranks. Names have no line
    breaks."""
    texts = texts_over_ranks("\n".join(names), group)
    return list(dict.fromkeys(name for text in texts for name in text.split("\n") if name))


def broadcast_bytes(content: bytes, group: ProcessGroup | None) -> bytes:
    """Return the first rank's bytes on all ranks, [n] → [n], after a broadcast of n; other ranks pass
    none."""
    if group is None:
        return content
    size = torch.tensor([len(content)])
    with NOTES.of(group).blocking("broadcast", size):
        dist.broadcast(size, group=group, group_src=0)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if group.rank() == 0:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    with NOTES.of(group).blocking("broadcast", buffer):
        dist.broadcast(buffer, group=group, group_src=0)
    return buffer.numpy().tobytes()
