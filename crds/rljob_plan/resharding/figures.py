"""Bytes of a reshard: moved, at the least, at a time, and at the peak. Called by `memory` and `plan`.

Peaks are those of three stages that overlap: a bucket is gathered while the one before is selected from its
buffers into the rollout's weights, and the update's weights of the one before that go to the host.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from rljob_plan.resharding.buckets import members_by_stack
from rljob_plan.resharding.resharding_plan import ReshardPlan, group_of
from rljob_plan.resharding.routes import Move
from rljob_plan.resharding.stacks import Stack

Place = tuple[int, tuple[int, ...]]
"""Of a step in its bucket: hop and group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a device holds of a model when that is most. buffers: what is sent, or was received."""

    update: int
    rollout: int
    buffers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.update + self.rollout + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardBytes:
    """Of a plan. moved: what devices receive of others, all together. lower_bound: what they need and lack.
    received: by the device that receives most. between_nodes: of `moved`, what goes to another node; None
    where no nodes are known. buckets: their number. largest_bucket: on a device, in both layouts and
    buffers. largest_step: all pieces of it. kept: update weights that stay on all devices where nothing
    is swapped.
    """

    moved: int
    lower_bound: int
    received: int
    between_nodes: int | None
    buckets: int
    largest_bucket: int
    largest_step: int
    kept: int


def count_bytes(plan: ReshardPlan) -> ReshardBytes:
    """Figures of all devices together."""
    loads, times = plan.loads, _times(plan)
    received = loads.total(loads.received, times)
    update = loads.total(loads.update, times)
    sizes = [len(devices) for devices in loads.kinds]
    return ReshardBytes(
        moved=sum(number * size for number, size in zip(sizes, received, strict=True)),
        lower_bound=lower_bound(plan),
        received=max(received),
        between_nodes=_between_nodes(plan),
        buckets=len(plan.buckets),
        largest_bucket=largest_bucket(plan),
        largest_step=_largest_step(plan),
        kept=sum(number * size for number, size in zip(sizes, update, strict=True)),
    )


def lower_bound(plan: ReshardPlan) -> int:
    """Bytes that devices need to generate and do not have: no plan between these layouts moves fewer."""
    missing = 0
    for stack in plan.stacks:
        for tensor in stack.tensors:
            held = {
                device: box
                for box, devices in plan.update.holders(tensor).items()
                for device in devices
            }
            item = plan.widths.sent(tensor) * stack.members
            for box, devices in plan.rollout.holders(tensor).items():
                there = sum(box.meet(held[device]).items for device in devices if device in held)
                missing += (box.items * len(devices) - there) * item
    return missing


def most_sent(plan: ReshardPlan, devices: range) -> int:
    """Bytes that one of these devices sends and receives, each once, where that is most."""
    found = plan.loads.total(plan.loads.buffer, _times(plan))
    return max(
        size
        for size, kind in zip(found, plan.loads.kinds, strict=True)
        if any(device in devices for device in kind)
    )


def largest_bucket(plan: ReshardPlan) -> int:
    """Bytes of the largest bucket on a device, in both layouts and buffers."""
    return max(
        max(map(sum, zip(update, rollout, buffer, strict=True)))
        for update, rollout, buffer in plan.bucket_loads
    )


def peaks(plan: ReshardPlan, *, swaps: bool) -> list[Peak]:
    """The peak of each kind of device of `plan.loads`. swaps: whether the update's weights go to the host
    bucket by bucket and the rollout's take their place; otherwise both are there throughout."""
    loads, times = plan.loads, _times(plan)
    update, rollout = loads.total(loads.update, times), loads.total(loads.rollout, times)
    none = [0] * len(loads.kinds)
    rows = [*plan.bucket_loads, (none, none, none)]
    found: list[Peak] = [Peak(update=0, rollout=0, buffers=0)] * len(loads.kinds)
    left, there = (update, none) if swaps else (update, rollout)
    for number, (_, _, buffer) in enumerate(rows):
        selected = rows[number - 1] if number else (none, none, none)
        swapped = rows[number - 3][0] if number > 2 else none
        if swaps:
            left = [a - b for a, b in zip(left, swapped, strict=True)]
            there = [a + b for a, b in zip(there, selected[1], strict=True)]
        under_way = [a + b for a, b in zip(buffer, selected[2], strict=True)]
        found = [
            max(best, Peak(update=u, rollout=r, buffers=b), key=lambda peak: peak.total)
            for best, u, r, b in zip(found, left, there, under_way, strict=True)
        ]
    return found


def fullest(plan: ReshardPlan, devices: range, *, swaps: bool) -> Peak:
    """The peak of the device that needs most, of these."""
    kinds = zip(plan.loads.kinds, peaks(plan, swaps=swaps), strict=True)
    found = [peak for kind, peak in kinds if kind[0] in devices]
    return max(found, key=lambda peak: peak.total)


def streamed(plan: ReshardPlan, *, joined: bool, sent: bool) -> Peak:
    """The same where whole tensors go one at a time, and both layouts stay. joined: update devices put each
    together of their slices. sent: it goes to other devices, as a copy where these have a narrower type."""
    loads, times, devices = plan.loads, _times(plan), plan.update.devices
    on_its_way = 0
    for stack in plan.stacks:
        for tensor in stack.tensors:
            held, narrow = plan.widths.held_to_train(tensor), plan.widths.sent(tensor)
            item = joined * held + (sent and narrow < held) * narrow
            on_its_way = max(on_its_way, prod(tensor.shape) * item)
    held_by_kind = zip(
        loads.kinds,
        loads.total(loads.update, times),
        loads.total(loads.rollout, times),
        strict=True,
    )
    found = [
        Peak(update=update, rollout=rollout, buffers=on_its_way)
        for kind, update, rollout in held_by_kind
        if kind[0] in devices
    ]
    return max(found, key=lambda peak: peak.total)


def bound(plan: ReshardPlan) -> int:
    """Bytes that a device may hold while it swaps: its larger layout's weights and two buckets."""
    loads, times = plan.loads, _times(plan)
    weights = max(*loads.total(loads.update, times), *loads.total(loads.rollout, times))
    return weights + 2 * largest_bucket(plan)


def _times(plan: ReshardPlan) -> list[tuple[int, int]]:
    return [(number, stack.members) for number, stack in enumerate(plan.stacks)]


def _between_nodes(plan: ReshardPlan) -> int | None:
    node = plan.node_devices
    if node is None:
        return None
    moved = 0
    for stack, moves in zip(plan.stacks, plan.moves, strict=True):
        for move in moves:
            home = move.source // node
            others = sum(target // node != home for target in move.targets)
            item = plan.widths.sent(stack.tensors[move.tensor])
            moved += others * move.box.items * item * stack.members
    return moved


def _largest_step(plan: ReshardPlan) -> int:
    steps = [
        _step_bytes(plan, stack, moves)
        for stack, moves in zip(plan.stacks, plan.moves, strict=True)
    ]
    at_most = [max(found.values(), default=0) for found in steps]
    times = {frozenset(members_by_stack(bucket)) for bucket in plan.buckets}
    bounds = [(sum(members * at_most[stack] for stack, members in one), one) for one in times]
    largest = 0
    for bound, one in sorted(bounds, key=lambda pair: -pair[0]):
        if bound <= largest:
            break
        total: Counter[Place] = Counter()
        for stack_number, members in one:
            for place, size in steps[stack_number].items():
                total[place] += members * size
        largest = max(largest, *total.values())
    return largest


def _step_bytes(plan: ReshardPlan, stack: Stack, moves: Iterable[Move]) -> Counter[Place]:
    """Of a member's steps that leave a device, by hop and group."""
    found: Counter[Place] = Counter()
    for move in moves:
        if not move.copies:
            item = plan.widths.sent(stack.tensors[move.tensor])
            found[move.hop, group_of(move)] += move.box.items * item
    return found
