"""Asynchronous collectives without gradients, so that a rank computes before it waits.

Called by the primitives of this folder. `group` None means one rank: nothing is sent. Sent tensors must not
be written before the wait. `volume` has their bytes.
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
    """A pending result. sent: tensors to keep alive until the wait. notes: describe the awaited collectives
    for reports of hangs; there is one for all works, or one for each."""

    result: Tensor
    works: Sequence[Work] = ()
    sent: Sequence[Tensor] = ()
    notes: Sequence[tuple[GroupNotes, Note]] = ()

    def wait(self) -> Tensor:
        """Wait for the result and return it. Raises RuntimeError when a rank is gone or the group's timeout
        expires."""
        with ExitStack() as waits:
            for group, note in self.notes:
                waits.enter_context(group.wait(note))
            for work in self.works:
                work.wait()
        return self.result

    def done(self) -> bool:
        """Return whether a wait would return immediately."""
        return all(work.is_completed() for work in self.works)


def start_gather(
    local: Tensor, group: ProcessGroup | None, *, into: Tensor | None = None
) -> Pending:
    """Concatenate all ranks' tensors, [n, ...] → [ranks·n, ...]; n is equal on all ranks.

    into: receives the result; `local` may be this rank's rows of it.
    """
    if group is None:
        return Pending(local)
    local = local.contiguous()
    gathered = (
        local.new_empty(group.size() * len(local), *local.shape[1:]) if into is None else into
    )
    notes = _begin("all_gather", local, group)
    return Pending(gathered, [_gather(gathered, local, group=group, async_op=True)], [local], notes)


def start_scatter_sum(
    values: Tensor, group: ProcessGroup | None, *, into: Tensor | None = None
) -> Pending:
    """Sum all ranks' tensors and return this rank's rows, [ranks·n, ...] → [n, ...].

    into: receives the result; it may be this rank's rows of `values`.
    """
    if group is None:
        return Pending(values)
    ranks = group.size()
    assert len(values) % ranks == 0, f"{len(values)} rows do not split over {ranks} ranks; pad them"
    values = values.contiguous()
    shard = values.new_empty(len(values) // ranks, *values.shape[1:]) if into is None else into
    notes = _begin("reduce_scatter", values, group)
    return Pending(shard, [_scatter(shard, values, group=group, async_op=True)], [values], notes)


def start_sum(values: Tensor, group: ProcessGroup | None) -> Pending:
    """Replace values by their sum over the ranks, in place, [...] → [...]."""
    if group is None:
        return Pending(values)
    notes = _begin("all_reduce", values, group)
    work = dist.all_reduce(values, group=group, async_op=True)
    assert work is not None, "a rank sums in its own group alone"
    return Pending(values, [work], notes=notes)


def start_broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """Broadcast the source's values to every rank, in place, [...] → [...]; source: rank in the group."""
    if group is None:
        return Pending(values)
    assert values.is_contiguous(), "what arrives must be in `values` itself"
    notes = _begin("broadcast", values, group)
    work = dist.broadcast(values, group=group, group_src=source, async_op=True)
    assert work is not None, "a rank hears its own group alone"
    return Pending(values, [work], [values], notes)


def broadcast(values: Tensor, source: int, group: ProcessGroup | None) -> Tensor:
    """Return the source's values on every rank, [...] → [...]; source: rank in the group."""
    if group is not None:
        values = values.contiguous()
        with NOTES.of(group).blocking("broadcast", values):
            dist.broadcast(values, group=group, group_src=source)
    return values


def start_exchange(
    rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup | None
) -> Pending:
    """Send rows to each rank, [n, ...] → [R, ...]. sent, received: row counts by rank, which add up to n and
    R; received rows are in the order of ranks. Any count may be 0."""
    if group is None:
        return Pending(rows)
    rows = rows.contiguous()
    received_rows = rows.new_empty(sum(received), *rows.shape[1:])
    notes = _begin("all_to_all", rows, group)
    work = dist.all_to_all_single(received_rows, rows, received, sent, group=group, async_op=True)
    assert work is not None, "a rank exchanges rows in its own group alone"
    return Pending(received_rows, [work], [rows], notes)


def start_shift(rows: Tensor, arriving: Tensor, group: ProcessGroup | None) -> Pending:
    """Send rows to the next rank of the ring, and receive those of the previous rank in `arriving`, [n, ...]
    → [R, ...]. All ranks know all sizes: an empty tensor is not sent."""
    if group is None:
        return Pending(rows)
    rank, ranks = group.rank(), group.size()
    rows = rows.contiguous()
    following, preceding = (rank + 1) % ranks, (rank - 1) % ranks
    operations, notes = [], []
    if rows.numel():
        operations.append(P2POp(dist.isend, rows, group=group, group_peer=following))
        notes += _begin_message("send", rows, group, rank, following)
    if arriving.numel():
        operations.append(P2POp(dist.irecv, arriving, group=group, group_peer=preceding))
        notes += _begin_message("receive", arriving, group, preceding, rank)
    works = dist.batch_isend_irecv(operations) if operations else []
    return Pending(arriving, works, [rows], notes)


def start_send(tensor: Tensor, target: int, group: ProcessGroup | None) -> Pending:
    """Send a tensor to one other rank, [...] → [...]; an empty one is not sent. target: rank in the group."""
    tensor = tensor.contiguous()
    if not tensor.numel():
        return Pending(tensor)
    notes = _begin_message("send", tensor, group, None, target)
    work = dist.isend(tensor, group=group, group_dst=target)
    assert work is not None, "a rank sends in its own group alone"
    return Pending(tensor, [work], [tensor], notes)


def start_receive(into: Tensor, source: int, group: ProcessGroup | None) -> Pending:
    """Receive a tensor that the source sends with `start_send`, in the order of its sends."""
    if not into.numel():
        return Pending(into)
    notes = _begin_message("receive", into, group, source, None)
    work = dist.irecv(into, group=group, group_src=source)
    assert work is not None, "a rank receives in its own group alone"
    return Pending(into, [work], notes=notes)


def _begin(operation: str, tensor: Tensor, group: ProcessGroup) -> list[tuple[GroupNotes, Note]]:
    notes = NOTES.of(group)
    return [(notes, notes.begin(operation, tensor))]


def _begin_message(
    operation: str,
    tensor: Tensor,
    group: ProcessGroup | None,
    source: int | None,
    target: int | None,
) -> list[tuple[GroupNotes, Note]]:
    """Note a message. source, target: ranks in the group; None is this rank."""
    group = dist.group.WORLD if group is None else group
    assert group is not None, "messages go to another rank"
    local_rank = group.rank()
    notes = NOTES.pair(
        group, local_rank if source is None else source, local_rank if target is None else target
    )
    return [(notes, notes.begin(operation, tensor))]
