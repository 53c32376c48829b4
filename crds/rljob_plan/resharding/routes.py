"""Who sends a box to whom, so that each byte reaches each device that lacks it once.

Called by `plan`. Between nodes a box goes once to each node without it, and from there to the node's other
devices, from the weights that were received: the links between nodes are the slow ones.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rljob_plan.resharding.boxes import Box
from rljob_plan.resharding.layouts import Layout
from rljob_plan.resharding.stacks import Stack


class Move(NamedTuple):
    """A box from the device that has it to those that lack it, or, where `targets` is the source alone, a
    copy on the device. tensor: which of a stack's. hop: 1 reads what hop 0 brought to the source."""

    tensor: int
    box: Box
    source: int
    targets: tuple[int, ...]
    hop: int = 0

    @property
    def copies(self) -> bool:
        """Whether nothing leaves the device."""
        return self.targets == (self.source,)


def moves_of(
    stack: Stack, update: Layout, rollout: Layout, *, node_devices: int | None, turn: int = 0
) -> Iterator[Move]:
    """Moves of one member of a stack. node_devices: of a node; None where all are on one.

    turn: any number; it varies which of several devices sends.
    """
    for number, tensor in enumerate(stack.tensors):
        targets = rollout.holders(tensor)
        for held, holders in update.holders(tensor).items():
            for wanted, wanting in targets.items():
                box = held.meet(wanted)
                if not box.items:
                    continue
                turn += 1
                lacking = set(wanting).difference(holders)
                for device in sorted(set(wanting) - lacking):
                    yield Move(number, box, device, (device,))
                for source, receivers, hop in _routes(holders, sorted(lacking), node_devices, turn):
                    yield Move(number, box, source, receivers, hop)


def _routes(
    holders: Sequence[int], lacking: Sequence[int], node_devices: int | None, turn: int
) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Source, targets and hop, from holders to all that lack it; both ascending."""
    if not lacking:
        return
    if node_devices is None:
        for source, targets in _evenly(holders, lacking):
            yield source, targets, 0
        return
    inside: dict[int, list[int]] = {}
    for device in holders:
        inside.setdefault(device // node_devices, []).append(device)
    by_node: dict[int, list[int]] = {}
    for device in lacking:
        by_node.setdefault(device // node_devices, []).append(device)
    entries: list[int] = []
    for node, devices in by_node.items():
        if node in inside:
            for source, targets in _evenly(inside[node], devices):
                yield source, targets, 0
            continue
        entry = devices[turn % len(devices)]
        entries.append(entry)
        others = tuple(device for device in devices if device != entry)
        if others:
            yield entry, others, 1
    first = turn % len(holders)
    for source, targets in _evenly([*holders[first:], *holders[:first]], entries):
        yield source, targets, 0


def _evenly(
    sources: Sequence[int], targets: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each source with its share of the targets, neighbours together."""
    of_source: dict[int, list[int]] = {}
    for place, target in enumerate(targets):
        of_source.setdefault(sources[place * len(sources) // len(targets)], []).append(target)
    yield from ((source, tuple(found)) for source, found in of_source.items())
