"""Collectives without gradients, started now and awaited later, so that a rank computes meanwhile.

Called by the primitives of this folder. `group` None stands for one rank: nothing moves. What is sent may
not be written to before the wait. `volume` has their bytes.
"""

# n rows of one rank, R rows that arrive; all further dims stay as they are

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import P2POp, ProcessGroup, Work

from rljob_runtime.devices.collective_notes import NOTES, GroupNotes, Note

_COLLECTIVES: Any = dist
# torch 2.13 renames both, and warns of the old names.
_gather = getattr(dist, "all_gather_single", None) or _COLLECTIVES.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or _COLLECTIVES.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Pending:
    """A result on its way. sent: kept alive until then. noted: what is waited for, for when it hangs; all
    works belong to it, or the first to the first, and so on."""

    result: Tensor
    works: Sequence[Work] = ()
    sent: Sequence[Tensor] = ()
    noted: Sequence[tuple[GroupNotes, Note]] = ()

    def wait(self) -> Tensor:
        """The result. Raises RuntimeError when a rank is gone or the group's timeout is over."""
        with ExitStack() as waits:
            for group, note in self.noted:
                waits.enter_context(group.wait(note))
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
    noted = _begin("all_gather", part, group)
    return Pending(whole, [_gather(whole, part, group=group, async_op=True)], [part], noted)


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
    noted = _begin("reduce_scatter", whole, group)
    return Pending(part, [_scatter(part, whole, group=group, async_op=True)], [whole], noted)


def start_sum(values: Tensor, group: ProcessGroup | None) -> Pending:
    """Values become their sum over the ranks, in place, [...] → [...]."""
    if group is None:
        return Pending(values)
    noted = _begin("all_reduce", values, group)
    work = dist.all_reduce(values, group=group, async_op=True)
    assert work is not None, "a rank sums in its own group alone"
    return Pending(values, [work], noted=noted)


def start_broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """The source's values on every rank, in place, [...] → [...]; source: rank in the group."""
    if group is None:
        return Pending(values)
    assert values.is_contiguous(), "what arrives must be in `values` itself"
    noted = _begin("broadcast", values, group)
    work = dist.broadcast(values, group=group, group_src=source, async_op=True)
    assert work is not None, "a rank hears its own group alone"
    return Pending(values, [work], [values], noted)


def broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Tensor:
    """The source's values on every rank, [...] → [...]; source: rank in the group."""
    if group is not None:
        values = values.contiguous()
        with NOTES.of(group).whole("broadcast", values):
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
    noted = _begin("all_to_all", rows, group)
    work = dist.all_to_all_single(arrived, rows, received, sent, group=group, async_op=True)
    assert work is not None, "a rank exchanges rows in its own group alone"
    return Pending(arrived, [work], [rows], noted)


def start_shift(rows: Tensor, arriving: Tensor, group: ProcessGroup | None) -> Pending:
    """Rows to the next rank of the ring, and into `arriving` those of the rank before, [n, ...] →
    [R, ...]. All ranks know all sizes: an empty tensor is not sent."""
    if group is None:
        return Pending(rows)
    rank, ranks = group.rank(), group.size()
    rows = rows.contiguous()
    following, before = (rank + 1) % ranks, (rank - 1) % ranks
    operations, noted = [], []
    if rows.numel():
        operations.append(P2POp(dist.isend, rows, group=group, group_peer=following))
        noted += _begin_message("send", rows, group, rank, following)
    if arriving.numel():
        operations.append(P2POp(dist.irecv, arriving, group=group, group_peer=before))
        noted += _begin_message("receive", arriving, group, before, rank)
    works = dist.batch_isend_irecv(operations) if operations else []
    return Pending(arriving, works, [rows], noted)


def start_send(tensor: Tensor, target: int, group: ProcessGroup | None) -> Pending:
    """A tensor to one other rank, [...] → [...]; an empty one is not sent. target: rank in the group."""
    tensor = tensor.contiguous()
    if not tensor.numel():
        return Pending(tensor)
    noted = _begin_message("send", tensor, group, None, target)
    work = dist.isend(tensor, group=group, group_dst=target)
    assert work is not None, "a rank sends in its own group alone"
    return Pending(tensor, [work], [tensor], noted)


def start_receive(into: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """What the source sends with `start_send`, in the order of its sends."""
    if not into.numel():
        return Pending(into)
    noted = _begin_message("receive", into, group, source, None)
    work = dist.irecv(into, group=group, group_src=source)
    assert work is not None, "a rank receives in its own group alone"
    return Pending(into, [work], noted=noted)


def _begin(what: str, tensor: Tensor, group: ProcessGroup) -> list[tuple[GroupNotes, Note]]:
    notes = NOTES.of(group)
    return [(notes, notes.begin(what, tensor))]


def _begin_message(
    what: str, tensor: Tensor, group: ProcessGroup | None, source: int | None, target: int | None
) -> list[tuple[GroupNotes, Note]]:
    """source, target: ranks in the group, of which None is this one."""
    group = dist.group.WORLD if group is None else group
    assert group is not None, "messages go to another rank"
    own = group.rank()
    notes = NOTES.pair(group, own if source is None else source, own if target is None else target)
    return [(notes, notes.begin(what, tensor))]
