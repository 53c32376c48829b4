"""Collectives without gradients, started now and awaited later, so that a rank computes meanwhile.

Called by the primitives of this folder. `group` None stands for one rank: nothing moves. What is sent may
not be written to before the wait. `volume` has their bytes.
"""

# n rows of one rank, R rows that arrive; all further dims stay as they are

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup, Work

_COLLECTIVES: Any = dist
# torch 2.13 renames both, and warns of the old names.
_gather = getattr(dist, "all_gather_single", None) or _COLLECTIVES.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or _COLLECTIVES.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Pending:
    """A result on its way. sent: kept alive until then."""

    result: Tensor
    works: Sequence[Work] = ()
    sent: Sequence[Tensor] = ()

    def wait(self) -> Tensor:
        """The result. Raises RuntimeError when a rank is gone or the group's timeout is over."""
        for work in self.works:
            work.wait()
        return self.result

    def done(self) -> bool:
        """Whether a wait would end at once."""
        return all(work.is_completed() for work in self.works)


def start_gather(
    part: Tensor, group: ProcessGroup | None, *, into: Tensor | None = None
) -> Pending:
    """All ranks' parts one after the other, [n, ...] → [ranks·n, ...]; n is the same everywhere.

    into: takes the result; `part` may be this rank's rows of it.
    """
    if group is None:
        return Pending(part)
    part = part.contiguous()
    whole = part.new_empty(group.size() * len(part), *part.shape[1:]) if into is None else into
    return Pending(whole, [_gather(whole, part, group=group, async_op=True)], [part])


def start_scatter_sum(
    whole: Tensor, group: ProcessGroup | None, *, into: Tensor | None = None
) -> Pending:
    """This rank's part of the sum of all ranks' tensors, [ranks·n, ...] → [n, ...].

    into: takes the result; it may be this rank's rows of `whole`.
    """
    if group is None:
        return Pending(whole)
    ranks = group.size()
    assert len(whole) % ranks == 0, f"{len(whole)} rows do not split over {ranks} ranks; pad them"
    whole = whole.contiguous()
    part = whole.new_empty(len(whole) // ranks, *whole.shape[1:]) if into is None else into
    return Pending(part, [_scatter(part, whole, group=group, async_op=True)], [whole])


def start_sum(values: Tensor, group: ProcessGroup | None) -> Pending:
    """Values become their sum over the ranks, in place, [...] → [...]."""
    if group is None:
        return Pending(values)
    work = dist.all_reduce(values, group=group, async_op=True)
    assert work is not None, "a rank sums in its own group alone"
    return Pending(values, [work])


def start_broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """The source's values on every rank, in place, [...] → [...]; source: rank in the group."""
    if group is None:
        return Pending(values)
    assert values.is_contiguous(), "what arrives must be in `values` itself"
    work = dist.broadcast(values, group=group, group_src=source, async_op=True)
    assert work is not None, "a rank hears its own group alone"
    return Pending(values, [work], [values])


def broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Tensor:
    """The source's values on every rank, [...] → [...]; source: rank in the group."""
    if group is not None:
        values = values.contiguous()
        dist.broadcast(values, group=group, group_src=source)
    return values


def start_exchange(
    rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup | None
) -> Pending:
    """Rows to each rank, [n, ...] → [R, ...]. sent, received: rows by rank, which add up to n and R;
    those that arrive are in the order of ranks. Any of them may be 0."""
    if group is None:
        return Pending(rows)
    rows = rows.contiguous()
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    work = dist.all_to_all_single(arrived, rows, received, sent, group=group, async_op=True)
    assert work is not None, "a rank exchanges rows in its own group alone"
    return Pending(arrived, [work], [rows])


def start_shift(rows: Tensor, arriving: Tensor, group: ProcessGroup | None) -> Pending:
    """Rows to the next rank of the ring, and into `arriving` those of the rank before, [n, ...] →
    [R, ...]. All ranks know all sizes: an empty tensor is not sent."""
    if group is None:
        return Pending(rows)
    rank, ranks = group.rank(), group.size()
    rows = rows.contiguous()
    operations = []
    if rows.numel():
        operations.append(P2POp(dist.isend, rows, group=group, group_peer=(rank + 1) % ranks))
    if arriving.numel():
        operations.append(P2POp(dist.irecv, arriving, group=group, group_peer=(rank - 1) % ranks))
    works = dist.batch_isend_irecv(operations) if operations else []
    return Pending(arriving, works, [rows])


def start_send(tensor: Tensor, target: int, group: ProcessGroup | None) -> Pending:
    """A tensor to one other rank, [...] → [...]; an empty one is not sent. target: rank in the group."""
    tensor = tensor.contiguous()
    if not tensor.numel():
        return Pending(tensor)
    work = dist.isend(tensor, group=group, group_dst=target)
    assert work is not None, "a rank sends in its own group alone"
    return Pending(tensor, [work], [tensor])


def start_receive(into: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """What the source sends with `start_send`, in the order of its sends."""
    if not into.numel():
        return Pending(into)
    work = dist.irecv(into, group=group, group_src=source)
    assert work is not None, "a rank receives in its own group alone"
    return Pending(into, [work])
