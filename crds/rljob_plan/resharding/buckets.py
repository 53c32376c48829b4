"""The order in which members of stacks move, and how many at once. Called by `plan`.

All stacks take turns, each in proportion to its number of members, so that on every device the weights of
both layouts come and go in the same proportion: what a device has given makes room for what it gets.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import add, sub
from typing import NamedTuple

from rljob_plan.resharding.loads import Loads
from rljob_plan.resharding.stacks import Stack, Stages

MAX_BUCKET_BYTES = 512 * 2**20
BUCKETS = 32
"""In about so many the larger layout's weights are moved, where that makes smaller buckets."""


class Member(NamedTuple):
    """One of the tensors, or sets of experts, that a stack is of. Both count from 0."""

    stack: int
    number: int


def usual_bucket_bytes(loads: Loads, stacks: Sequence[Stack]) -> int:
    """A bucket's limit where none is given."""
    times = [(number, stack.members) for number, stack in enumerate(stacks)]
    largest = max(max(loads.total(rows, times)) for rows in (loads.update, loads.rollout))
    return min(MAX_BUCKET_BYTES, largest // BUCKETS + 1)


def cut_buckets(
    stacks: Sequence[Stack], loads: Loads, bucket_bytes: int
) -> list[tuple[Member, ...]]:
    """All members. On no device has a bucket more than `bucket_bytes`, in both layouts and buffers
    together, unless it is a single member."""
    sizes = [
        [sum(column) for column in zip(*rows, strict=True)]
        for rows in zip(loads.update, loads.rollout, loads.buffer, strict=True)
    ]
    buckets: list[tuple[Member, ...]] = []
    bucket: list[Member] = []
    filled = [0] * len(loads.kinds)
    for member in _in_order(stacks, loads):
        more = list(map(add, filled, sizes[member.stack]))
        if bucket and max(more) > bucket_bytes:
            buckets.append(tuple(bucket))
            bucket, more = [], sizes[member.stack]
        bucket.append(member)
        filled = more
    return [*buckets, tuple(bucket)]


def members_by_stack(bucket: Sequence[Member]) -> list[tuple[int, int]]:
    """(stack, members) of a bucket."""
    return list(Counter(member.stack for member in bucket).items())


def _in_order(stacks: Sequence[Stack], loads: Loads) -> Iterator[Member]:
    """Members in turns; where the next one would take more of a device than its larger layout's weights,
    the one that leaves most room."""
    waiting: dict[int, list[int]] = {}
    turns = _in_turns(stacks, loads)
    for stack, _ in turns:
        waiting[stack] = list(range(stacks[stack].members))[::-1]
    times = [(number, stack.members) for number, stack in enumerate(stacks)]
    update, rollout = loads.total(loads.update, times), loads.total(loads.rollout, times)
    room = [max(0, r - u) for u, r in zip(update, rollout, strict=True)]
    taken = [
        tuple(r - u for u, r in zip(*rows, strict=True))
        for rows in zip(loads.update, loads.rollout, strict=True)
    ]

    # Many stacks take the same of every device: what one of them leaves is what all leave.
    lefts: dict[tuple[int, ...], int] = {}

    def left(stack: int) -> int:
        row = taken[stack]
        if row not in lefts:
            lefts[row] = min(map(sub, room, row))
        return lefts[row]

    for stack, _ in turns:
        chosen = stack if waiting[stack] and left(stack) >= 0 else None
        if chosen is None:
            chosen = max((other for other in waiting if waiting[other]), key=left)
        yield Member(chosen, waiting[chosen].pop())
        room = list(map(sub, room, taken[chosen]))
        lefts.clear()


def _in_turns(stacks: Sequence[Stack], loads: Loads) -> list[Member]:
    """Each stack's members at even distances; the stacks of the same stages follow each other in between."""
    sizes = [
        max(map(sum, zip(*rows, strict=True)))
        for rows in zip(loads.update, loads.rollout, strict=True)
    ]
    total: Counter[Stages] = Counter()
    for stack, size in zip(stacks, sizes, strict=True):
        total[stack.stages] += size
    before: Counter[Stages] = Counter()
    placed: list[tuple[float, Member]] = []
    for number, (stack, size) in enumerate(zip(stacks, sizes, strict=True)):
        first = (before[stack.stages] + size / 2) / total[stack.stages]
        before[stack.stages] += size
        placed += [
            ((member + first) / stack.members, Member(number, member))
            for member in range(stack.members)
        ]
    return [member for _, member in sorted(placed)]
