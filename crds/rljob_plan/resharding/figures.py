"""Count the bytes of a reshard: moved, lower bound, largest bucket and step, and peak. Called by `memory` and
`plan`.

Peaks cover three overlapping stages. A bucket is gathered while the previous one is copied from its buffers
into the rollout's weights, and the update's weights of the one before that move to the host.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from rljob_plan.resharding.buckets import members_by_stack
from rljob_plan.resharding.resharding_plan import ReshardPlan, group_of
from rljob_plan.resharding.routes import Move
from rljob_plan.resharding.stacks import Stack

StepKey = tuple[int, tuple[int, ...]]
"""Key of a step in its bucket: hop and group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes that a device holds of a model at the peak. buffers: what is being sent or was received."""

    update: int
    rollout: int
    buffers: int

    @property
    def total(self) -> int:
        """Return the sum of weights and buffers."""
        return self.update + self.rollout + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardBytes:
    """Figures of a plan. moved: what devices receive from others, all together. lower_bound: what they need
    and lack. received: by the device that receives most. between_nodes: moved bytes that go to another node;
    None without known nodes. buckets: their number. largest_bucket: on a device, in both layouts and buffers.
    largest_step: all its boxes. retained: update weights that stay on all devices if nothing is swapped."""

    moved: int
    lower_bound: int
    received: int
    between_nodes: int | None
    buckets: int
    largest_bucket: int
    largest_step: int
    retained: int


def count_bytes(plan: ReshardPlan) -> ReshardBytes:
    """Return the figures of all devices together."""
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
        retained=sum(number * size for number, size in zip(sizes, update, strict=True)),
    )


def lower_bound(plan: ReshardPlan) -> int:
    """Return the bytes that devices need to generate and do not hold. No plan between these layouts moves
    fewer."""
    missing = 0
    for stack in plan.stacks:
        for tensor in stack.tensors:
            boxes_by_device = {
                device: box
                for box, devices in plan.update.holders(tensor).items()
                for device in devices
            }
            item = plan.widths.sent(tensor) * stack.members
            for box, devices in plan.rollout.holders(tensor).items():
                present = sum(
                    box.meet(boxes_by_device[device]).items
                    for device in devices
                    if device in boxes_by_device
                )
                missing += (box.items * len(devices) - present) * item
    return missing


def most_sent(plan: ReshardPlan, devices: range) -> int:
    """Return the most bytes that one of these devices sends and receives, each byte counted once."""
    buffers = plan.loads.total(plan.loads.buffer, _times(plan))
    return max(
        size
        for size, kind in zip(buffers, plan.loads.kinds, strict=True)
        if any(device in devices for device in kind)
    )


def largest_bucket(plan: ReshardPlan) -> int:
    """Return the bytes of the largest bucket on a device, in both layouts and buffers."""
    return max(
        max(map(sum, zip(update, rollout, buffer, strict=True)))
        for update, rollout, buffer in plan.bucket_loads
    )


def peaks(plan: ReshardPlan, *, swaps: bool) -> list[Peak]:
    """Return the peak of each kind of device of `plan.loads`. swaps: the update's weights move to the host
    bucket by bucket and the rollout's replace them; otherwise both stay throughout."""
    loads, times = plan.loads, _times(plan)
    update, rollout = loads.total(loads.update, times), loads.total(loads.rollout, times)
    none = [0] * len(loads.kinds)
    rows = [*plan.bucket_loads, (none, none, none)]
    best_peaks: list[Peak] = [Peak(update=0, rollout=0, buffers=0)] * len(loads.kinds)
    remaining, present = (update, none) if swaps else (update, rollout)
    for number, (_, _, buffer) in enumerate(rows):
        selected = rows[number - 1] if number else (none, none, none)
        swapped = rows[number - 3][0] if number > 2 else none
        if swaps:
            remaining = [a - b for a, b in zip(remaining, swapped, strict=True)]
            present = [a + b for a, b in zip(present, selected[1], strict=True)]
        in_transit = [a + b for a, b in zip(buffer, selected[2], strict=True)]
        best_peaks = [
            max(best, Peak(update=u, rollout=r, buffers=b), key=lambda peak: peak.total)
            for best, u, r, b in zip(best_peaks, remaining, present, in_transit, strict=True)
        ]
    return best_peaks


def fullest(plan: ReshardPlan, devices: range, *, swaps: bool) -> Peak:
    """Return the peak of the device that needs most, among these devices."""
    kinds = zip(plan.loads.kinds, peaks(plan, swaps=swaps), strict=True)
    candidates = [peak for kind, peak in kinds if kind[0] in devices]
    return max(candidates, key=lambda peak: peak.total)


def streamed(plan: ReshardPlan, *, joined: bool, sent: bool) -> Peak:
    """Return the peak of these devices if full tensors are streamed one at a time, and both layouts stay.
    joined: update devices assemble each tensor from their slices. sent: a tensor goes to other devices, as a
    copy if these have a narrower type."""
    loads, times, devices = plan.loads, _times(plan), plan.update.devices
    in_transit = 0
    for stack in plan.stacks:
        for tensor in stack.tensors:
            wide, narrow = plan.widths.update_item_bytes(tensor), plan.widths.sent(tensor)
            item = joined * wide + (sent and narrow < wide) * narrow
            in_transit = max(in_transit, prod(tensor.shape) * item)
    weights_by_kind = zip(
        loads.kinds,
        loads.total(loads.update, times),
        loads.total(loads.rollout, times),
        strict=True,
    )
    candidates = [
        Peak(update=update, rollout=rollout, buffers=in_transit)
        for kind, update, rollout in weights_by_kind
        if kind[0] in devices
    ]
    return max(candidates, key=lambda peak: peak.total)


def bound(plan: ReshardPlan) -> int:
    """Return the bytes that a device may hold while it swaps: its larger layout's weights and two buckets."""
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
    at_most = [max(sizes.values(), default=0) for sizes in steps]
    times = {frozenset(members_by_stack(bucket)) for bucket in plan.buckets}
    bounds = [
        (sum(members * at_most[stack] for stack, members in counts), counts) for counts in times
    ]
    largest = 0
    for bound, counts in sorted(bounds, key=lambda pair: -pair[0]):
        if bound <= largest:
            break
        total: Counter[StepKey] = Counter()
        for stack_number, members in counts:
            for key, size in steps[stack_number].items():
                total[key] += members * size
        largest = max(largest, *total.values())
    return largest


def _step_bytes(plan: ReshardPlan, stack: Stack, moves: Iterable[Move]) -> Counter[StepKey]:
    """Return the bytes of a member's steps that leave a device, by hop and group."""
    sizes: Counter[StepKey] = Counter()
    for move in moves:
        if not move.copies:
            item = plan.widths.sent(stack.tensors[move.tensor])
            sizes[move.hop, group_of(move)] += move.box.items * item
    return sizes
