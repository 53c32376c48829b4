"""The plan of a reshard: buckets of steps that bring weights from the update to the rollout layout.

Called by `figures`, and by a runtime, whose devices all make the same plan and run their own steps. Each
device receives each byte that it lacks once, from a device that has it, and nothing else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.buckets import (
    StackMember,
    cut_buckets,
    members_by_stack,
    usual_bucket_bytes,
)
from rljob_plan.resharding.layouts import LayoutTable
from rljob_plan.resharding.loads import Loads, find_loads
from rljob_plan.resharding.routes import Move, moves_of
from rljob_plan.resharding.stacks import Stack, find_stacks
from rljob_plan.resharding.widths import Widths

Kind = Literal["copy", "send", "broadcast", "gather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStep:
    """A transfer after which all devices of `group` have all its boxes.

    group: ascending. pieces: by sending device, ascending. hop: hop 0 sends weights of the update layout, hop
    1 those that hop 0 of the same bucket delivered. bytes: of all boxes in transit.
    """

    group: tuple[int, ...]
    pieces: dict[int, tuple[TensorBox, ...]]
    hop: int
    bytes: int

    @property
    def kind(self) -> Kind:
        """Return the operation of a library of collectives that carries it out."""
        if len(self.group) == 1:
            return "copy"
        if len(self.pieces) == len(self.group):
            return "gather"
        return "send" if len(self.group) == 2 else "broadcast"


@dataclass(frozen=True, kw_only=True)
class ReshardPlan:
    """The plan of a reshard. moves: of a member of each stack. bucket_bytes: the limit that buckets were cut
    by. node_devices: devices of a node."""

    update: LayoutTable
    rollout: LayoutTable
    widths: Widths
    stacks: tuple[Stack, ...]
    moves: tuple[tuple[Move, ...], ...]
    loads: Loads
    buckets: tuple[tuple[StackMember, ...], ...]
    bucket_bytes: int
    node_devices: int | None = None

    def of_device(self, device: int) -> "ReshardPlan":
        """Return the same plan with only the moves that the device takes part in."""
        moves = tuple(
            tuple(move for move in stack_moves if device == move.source or device in move.targets)
            for stack_moves in self.moves
        )
        return replace(self, moves=moves)

    def steps(self, bucket: Sequence[StackMember]) -> list[TransferStep]:
        """Return the steps of a bucket, in an order that is the same on every device; hop 0 first."""
        boxes_by_step: dict[tuple[int, tuple[int, ...]], dict[int, list[TensorBox]]] = {}
        for stack, number in bucket:
            tensors = self.stacks[stack].member(number)
            for move in self.moves[stack]:
                box = TensorBox(tensors[move.tensor], move.box)
                by_source = boxes_by_step.setdefault((move.hop, group_of(move)), {})
                by_source.setdefault(move.source, []).append(box)
        return [
            TransferStep(
                group=group,
                pieces={source: tuple(by_source[source]) for source in sorted(by_source)},
                hop=hop,
                bytes=sum(self.sent_bytes(box) for boxes in by_source.values() for box in boxes),
            )
            for (hop, group), by_source in sorted(boxes_by_step.items())
        ]

    @cached_property
    def bucket_loads(self) -> tuple[tuple[list[int], list[int], list[int]], ...]:
        """Return for each bucket the bytes of update weights, rollout weights and buffers, by kind of
        device."""
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

    def freed(self, bucket: Sequence[StackMember]) -> Iterator[str]:
        """Yield the names of the bucket's tensors, whose update weights are no longer needed after it."""
        for stack, number in bucket:
            yield from (tensor.name for tensor in self.stacks[stack].member(number))

    def sent_bytes(self, box: TensorBox) -> int:
        """Return the bytes of a box in transit."""
        return box.box.items * self.widths.sent(box.tensor)


def make_reshard_plan(
    update: LayoutTable,
    rollout: LayoutTable,
    widths: Widths,
    *,
    node_devices: int | None = None,
    bucket_bytes: int | None = None,
) -> ReshardPlan:
    """Plan a reshard between two layouts of one model.

    node_devices: devices of a node, between which links are slower; None for one node. bucket_bytes: what a
    bucket may take on a device, in both layouts and buffers together. None for a 32nd of the larger layout's
    weights, at most 512 MiB. A single tensor's slice, or a device's share of a set of experts, may be larger.
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
    """Return the devices that have the box after the move, ascending."""
    return (move.source,) if move.copies else tuple(sorted((move.source, *move.targets)))
