"""The plan of a reshard: buckets of steps that bring weights from the update to the rollout layout.

Called by `figures`, and by a runtime, whose devices all make the same plan and run the steps they are in.
Each device gets each byte that it lacks once, from one that has it, and no other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from rljob_plan.resharding.boxes import Piece
from rljob_plan.resharding.buckets import (
    Member,
    cut_buckets,
    members_by_stack,
    usual_bucket_bytes,
)
from rljob_plan.resharding.layouts import Layout
from rljob_plan.resharding.loads import Loads, find_loads
from rljob_plan.resharding.routes import Move, moves_of
from rljob_plan.resharding.stacks import Stack, find_stacks
from rljob_plan.resharding.widths import Widths

Kind = Literal["copy", "send", "broadcast", "gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """After it, all devices of `group` have all pieces.

    group: ascending. pieces: by the device that gives them, ascending. hop: 0 gives of the update layout's
    weights, 1 of those that hop 0 of the same bucket brought. bytes: of all pieces, on their way.
    """

    group: tuple[int, ...]
    pieces: dict[int, tuple[Piece, ...]]
    hop: int
    bytes: int

    @property
    def kind(self) -> Kind:
        """What it is for a library of collectives."""
        if len(self.group) == 1:
            return "copy"
        if len(self.pieces) == len(self.group):
            return "gather"
        return "send" if len(self.group) == 2 else "broadcast"


@dataclass(frozen=True, kw_only=True)
class ReshardPlan:
    """moves: of a member of each stack. bucket_bytes: the limit that buckets were cut by. node_devices: of
    a node."""

    update: Layout
    rollout: Layout
    widths: Widths
    stacks: tuple[Stack, ...]
    moves: tuple[tuple[Move, ...], ...]
    loads: Loads
    buckets: tuple[tuple[Member, ...], ...]
    bucket_bytes: int
    node_devices: int | None = None

    def of_device(self, device: int) -> "ReshardPlan":
        """The same plan, whose steps are those that the device is in."""
        moves = tuple(
            tuple(move for move in own if device == move.source or device in move.targets)
            for own in self.moves
        )
        return replace(self, moves=moves)

    def steps(self, bucket: Sequence[Member]) -> list[Step]:
        """Steps of a bucket, in an order that is the same on every device; hop 0 first."""
        found: dict[tuple[int, tuple[int, ...]], dict[int, list[Piece]]] = {}
        for stack, number in bucket:
            tensors = self.stacks[stack].member(number)
            for move in self.moves[stack]:
                piece = Piece(tensors[move.tensor], move.box)
                pieces = found.setdefault((move.hop, group_of(move)), {})
                pieces.setdefault(move.source, []).append(piece)
        return [
            Step(
                group=group,
                pieces={source: tuple(pieces[source]) for source in sorted(pieces)},
                hop=hop,
                bytes=sum(self.sent_bytes(piece) for given in pieces.values() for piece in given),
            )
            for (hop, group), pieces in sorted(found.items())
        ]

    @cached_property
    def bucket_loads(self) -> tuple[tuple[list[int], list[int], list[int]], ...]:
        """Of each bucket: bytes of update weights, rollout weights and buffers, by kind of device."""
        loads = self.loads
        all_times = [members_by_stack(bucket) for bucket in self.buckets]
        return tuple(
            (
                loads.total(loads.update, times),
                loads.total(loads.rollout, times),
                loads.total(loads.buffer, times),
            )
            for times in all_times
        )

    def freed(self, bucket: Sequence[Member]) -> Iterator[str]:
        """Names of the tensors that the bucket is of, whose update weights are needed no more after it."""
        for stack, number in bucket:
            yield from (tensor.name for tensor in self.stacks[stack].member(number))

    def sent_bytes(self, piece: Piece) -> int:
        """Of a piece on its way."""
        return piece.box.items * self.widths.sent(piece.tensor)


def make_reshard_plan(
    update: Layout,
    rollout: Layout,
    widths: Widths,
    *,
    node_devices: int | None = None,
    bucket_bytes: int | None = None,
) -> ReshardPlan:
    """Plan a reshard between two layouts of one model.

    node_devices: of a node, between which links are slower; None for one node. bucket_bytes: what a bucket
    may take on a device, in both layouts and buffers together; None for a 32nd of the larger layout's
    weights, at most 512 MiB. A single tensor's slice, or a device's share of a set of experts, may be more.
    """
    assert update.shape == rollout.shape, "layouts of two models"
    stacks = tuple(find_stacks(update, rollout))
    moves = tuple(
        tuple(moves_of(stack, update, rollout, node_devices=node_devices, turn=number))
        for number, stack in enumerate(stacks)
    )
    loads = find_loads(stacks, moves, update, rollout, widths)
    limit = usual_bucket_bytes(loads, stacks) if bucket_bytes is None else bucket_bytes
    return ReshardPlan(
        update=update,
        rollout=rollout,
        widths=widths,
        stacks=stacks,
        moves=moves,
        loads=loads,
        buckets=tuple(cut_buckets(stacks, loads, limit)),
        bucket_bytes=limit,
        node_devices=node_devices,
    )


def group_of(move: Move) -> tuple[int, ...]:
    """The devices that have the box after the move, ascending."""
    return (move.source,) if move.copies else tuple(sorted((move.source, *move.targets)))
