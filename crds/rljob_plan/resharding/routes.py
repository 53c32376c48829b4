"""Choose which device sends a box to which, so that each byte reaches each device that lacks it once.

Called by `resharding_plan`. Between nodes a box goes once to each node without it. From there it goes to the
node's other devices, read from the received weights, since the links between nodes are the slow ones.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rljob_plan.resharding.boxes import Box
from rljob_plan.resharding.layouts import LayoutTable
from rljob_plan.resharding.stacks import Stack


class Move(NamedTuple):
    """A box from the device that has it to those that lack it; or, if `targets` is only the source, a copy on
    the device. tensor: its index in the stack. hop: 1 reads what hop 0 delivered to the source."""

    tensor: int
    box: Box
    source: int
    targets: tuple[int, ...]
    hop: int = 0

    @property
    def copies(self) -> bool:
        """Return whether nothing leaves the device."""
        return self.targets == (self.source,)


def moves_of(
    stack: Stack,
    update: LayoutTable,
    rollout: LayoutTable,
    *,
    node_devices: int | None,
    turn: int = 0,
) -> Iterator[Move]:
    """Yield the moves of one member of a stack. node_devices: devices of a node; None if all are on one.

    turn: any number; it varies which of several devices sends.
    """
    for number, tensor in enumerate(stack.tensors):
        target_boxes = rollout.holders(tensor)
        for source_box, holders in update.holders(tensor).items():
            for target_box, receivers_of_box in target_boxes.items():
                box = source_box.meet(target_box)
                if not box.items:
                    continue
                turn += 1
                lacking = set(receivers_of_box).difference(holders)
                for device in sorted(set(receivers_of_box) - lacking):
                    yield Move(number, box, device, (device,))
                for source, receivers, hop in _routes(holders, sorted(lacking), node_devices, turn):
                    yield Move(number, box, source, receivers, hop)


def _routes(
    holders: Sequence[int], lacking: Sequence[int], node_devices: int | None, turn: int
) -> Iterator[tuple[int, tuple[int, ...], int]]:
    """Yield source, targets and hop, from holders to all devices that lack it; both ascending."""
    if not lacking:
        return
    if node_devices is None:
        for source, targets in _evenly(holders, lacking):
            yield source, targets, 0
        return
    holders_by_node: dict[int, list[int]] = {}
    for device in holders:
        holders_by_node.setdefault(device // node_devices, []).append(device)
    lacking_by_node: dict[int, list[int]] = {}
    for device in lacking:
        lacking_by_node.setdefault(device // node_devices, []).append(device)
    gateways: list[int] = []
    for node, devices in lacking_by_node.items():
        if node in holders_by_node:
            for source, targets in _evenly(holders_by_node[node], devices):
                yield source, targets, 0
            continue
        gateway = devices[turn % len(devices)]
        gateways.append(gateway)
        others = tuple(device for device in devices if device != gateway)
        if others:
            yield gateway, others, 1
    first = turn % len(holders)
    for source, targets in _evenly([*holders[first:], *holders[:first]], gateways):
        yield source, targets, 0


def _evenly(
    sources: Sequence[int], targets: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each source with its share of the targets; neighbours stay together."""
    of_source: dict[int, list[int]] = {}
    for index, target in enumerate(targets):
        of_source.setdefault(sources[index * len(sources) // len(targets)], []).append(target)
    yield from ((source, tuple(share)) for source, share in of_source.items())
