"""The collectives of data parallel training, and of what ranks tell each other.

`group` None stands for one rank: nothing happens.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collective_notes import NOTES

BUCKET_BYTES = 32 * 2**20


def rank_of(group: ProcessGroup | None) -> int:
    """This process' rank in the group."""
    return 0 if group is None else group.rank()


def size_of(group: ProcessGroup | None) -> int:
    """Ranks in the group."""
    return 1 if group is None else group.size()


def sum_over_ranks(values: Tensor, group: ProcessGroup | None) -> None:
    """Replace a flat tensor [n] by its sum over the group's ranks, [n] → [n], in place.

    Each rank sends and receives about 2·bytes·(ranks − 1)/ranks, one bucket after the other. gloo's
    ring adds in the order of ranks and shares the sum out: all ranks hold the same bits, and the
    same again in the next run.
    """
    if group is None:
        return
    for bucket in torch.split(values, BUCKET_BYTES // values.element_size()):
        with NOTES.of(group).whole("all_reduce sum", bucket):
            dist.all_reduce(bucket, op=dist.ReduceOp.SUM, group=group)


def max_over_ranks(values: Tensor, group: ProcessGroup | None) -> None:
    """Replace a flat tensor [n] by its maximum over the group's ranks, [n] → [n], in place."""
    if group is not None and len(values):
        with NOTES.of(group).whole("all_reduce max", values):
            dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)


def texts_over_ranks(own: str, group: ProcessGroup | None) -> list[str]:
    """All ranks' texts, by rank; the same on all. No text ends in a zero byte.

    Each rank sends the longest text's bytes to each other, after its length. Bytes that are no UTF-8 become
    other characters, which a signature of the text does not fit.
    """
    if group is None:
        return [own]
    content = own.encode()
    longest = torch.tensor([len(content)])
    max_over_ranks(longest, group)
    padded = torch.zeros(int(longest), dtype=torch.uint8)
    padded[: len(content)] = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)[
        : len(content)
    ]
    texts = [torch.empty_like(padded) for _ in range(size_of(group))]
    if len(padded):
        with NOTES.of(group).whole("all_gather", padded):
            dist.all_gather(texts, padded, group=group)
    return [bytes(rank.tolist()).rstrip(b"\0").decode(errors="replace") for rank in texts]


def union_over_ranks(names: Iterable[str], group: ProcessGroup | None) -> list[str]:
    """All ranks' names in the order of ranks, each once; the same on all. No name has a line break."""
    texts = texts_over_ranks("\n".join(names), group)
    return list(dict.fromkeys(name for text in texts for name in text.split("\n") if name))


def broadcast_bytes(content: bytes, group: ProcessGroup | None) -> bytes:
    """The first rank's bytes, [n] → [n] on all ranks, after their number; others give none."""
    if group is None:
        return content
    size = torch.tensor([len(content)])
    with NOTES.of(group).whole("broadcast", size):
        dist.broadcast(size, group=group, group_src=0)
    held = torch.empty(int(size), dtype=torch.uint8)
    if group.rank() == 0:
        held = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    with NOTES.of(group).whole("broadcast", held):
        dist.broadcast(held, group=group, group_src=0)
    return held.numpy().tobytes()
