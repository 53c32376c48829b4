"""Order the members of stacks and group them into buckets that move together. Called by `resharding_plan`.

All stacks take turns, each in proportion to its number of members. So on every device the weights of both
layouts come and go in the same proportion: the weights that a device has sent make room for those it
receives.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import add, sub
from typing import NamedTuple

from rljob_plan.resharding.loads import Loads
from rljob_plan.resharding.stacks import Stack, Stages

MAX_BUCKET_BYTES = 512 * 2**20
BUCKETS = 32
"""Approximate number of buckets that move the larger layout's weights, if that makes smaller buckets."""


class StackMember(NamedTuple):
    """One tensor, or set of experts, of a stack. stack, number: both count from 0."""

    stack: int
    number: int


def usual_bucket_bytes(loads: Loads, stacks: Sequence[Stack]) -> int:
    """Return the default limit of a bucket in bytes."""
    times = [(number, stack.members) for number, stack in enumerate(stacks)]
    largest = max(max(loads.total(rows, times)) for rows in (loads.update, loads.rollout))
    return min(MAX_BUCKET_BYTES, largest // BUCKETS + 1)


def cut_buckets(
    stacks: Sequence[Stack], loads: Loads, bucket_bytes: int
) -> list[tuple[StackMember, ...]]:
    """Group all members into buckets. On every device a bucket takes at most `bucket_bytes`, in both layouts
    and buffers together, unless it is a single member."""
    sizes = [
        [sum(column) for column in zip(*rows, strict=True)]
        for rows in zip(loads.update, loads.rollout, loads.buffer, strict=True)
    ]
    buckets: list[tuple[StackMember, ...]] = []
    bucket: list[StackMember] = []
    filled = [0] * len(loads.kinds)
    for member in _in_order(stacks, loads):
        more = list(map(add, filled, sizes[member.stack]))
        if bucket and max(more) > bucket_bytes:
            buckets.append(tuple(bucket))
            bucket, more = [], sizes[member.stack]
        bucket.append(member)
        filled = more
    return [*buckets, tuple(bucket)]


def members_by_stack(bucket: Sequence[StackMember]) -> list[tuple[int, int]]:
    """Return pairs (stack, members) of a bucket."""
    return list(Counter(member.stack for member in bucket).items())


def _in_order(stacks: Sequence[Stack], loads: Loads) -> Iterator[StackMember]:
    """Yield members in turns. If the next one would exceed a device's larger layout, yield the one that
    leaves most room."""
    waiting: dict[int, list[int]] = {}
    turns = _in_turns(stacks, loads)
    for stack, _ in turns:
        waiting[stack] = list(range(stacks[stack].members))[::-1]
    times = [(number, stack.members) for number, stack in enumerate(stacks)]
    update, rollout = loads.total(loads.update, times), loads.total(loads.rollout, times)
    room = [max(0, r - u) for u, r in zip(update, rollout, strict=True)]
    growth = [
        tuple(r - u for u, r in zip(*rows, strict=True))
        for rows in zip(loads.update, loads.rollout, strict=True)
    ]

    # Many stacks take the same bytes of every device, so they leave the same room.
    rooms_after: dict[tuple[int, ...], int] = {}

    def room_after(stack: int) -> int:
        """Return the least room that a member of the stack leaves on any device."""
        row = growth[stack]
        if row not in rooms_after:
            rooms_after[row] = min(map(sub, room, row))
        return rooms_after[row]

    for stack, _ in turns:
        chosen = stack if waiting[stack] and room_after(stack) >= 0 else None
        if chosen is None:
            chosen = max((other for other in waiting if waiting[other]), key=room_after)
        yield StackMember(chosen, waiting[chosen].pop())
        room = list(map(sub, room, growth[chosen]))
        rooms_after.clear()


def _in_turns(stacks: Sequence[Stack], loads: Loads) -> list[StackMember]:
    """Place each stack's members at even distances. Stacks of the same stages follow each other in
    between."""
    sizes = [
        max(map(sum, zip(*rows, strict=True)))
        for rows in zip(loads.update, loads.rollout, strict=True)
    ]
    total: Counter[Stages] = Counter()
    for stack, size in zip(stacks, sizes, strict=True):
        total[stack.stages] += size
    before: Counter[Stages] = Counter()
    positions: list[tuple[float, StackMember]] = []
    for number, (stack, size) in enumerate(zip(stacks, sizes, strict=True)):
        first = (before[stack.stages] + size / 2) / total[stack.stages]
        before[stack.stages] += size
        positions += [
            ((member + first) / stack.members, StackMember(number, member))
            for member in range(stack.members)
        ]
    return [member for _, member in sorted(positions)]
