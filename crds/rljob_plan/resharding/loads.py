"""Bytes that a member of each stack takes on each device. Called by `plan`; read by `buckets` and `figures`.

Devices that nothing tells apart are a kind, and counted once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_plan.resharding.layouts import Layout
from rljob_plan.resharding.routes import Move
from rljob_plan.resharding.stacks import Stack
from rljob_plan.resharding.widths import Widths

Row = tuple[int, ...]
"""Bytes by kind of device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Rows of a member of each stack. kinds: the devices of each.

    update, rollout: weights in either layout. buffer: what a device sends and receives, each once.
    received: of it, what comes from others.
    """

    kinds: tuple[tuple[int, ...], ...]
    update: tuple[Row, ...]
    rollout: tuple[Row, ...]
    buffer: tuple[Row, ...]
    received: tuple[Row, ...]

    def total(self, rows: Sequence[Row], times: Iterable[tuple[int, int]]) -> list[int]:
        """Sum of some stacks' rows. times: (stack, members)."""
        found = [0] * len(self.kinds)
        for stack, members in times:
            found = [size + members * more for size, more in zip(found, rows[stack], strict=True)]
        return found


def find_loads(
    stacks: Sequence[Stack],
    moves: Sequence[Sequence[Move]],
    update: Layout,
    rollout: Layout,
    widths: Widths,
) -> Loads:
    """Loads of all stacks. moves: of a member of each."""
    number = max(update.devices.stop, rollout.devices.stop)
    columns: list[list[list[int]]] = [[], [], [], []]
    for stack, own in zip(stacks, moves, strict=True):
        columns[0].append(_trained(stack, update, widths, [0] * number))
        columns[1].append(_generated(stack, rollout, widths, [0] * number))
        sent = _sent(stack, own, widths, [0] * number)
        columns[3].append(_received(stack, own, widths, [0] * number))
        columns[2].append([a + b for a, b in zip(sent, columns[3][-1], strict=True)])
    kinds: dict[Row, list[int]] = {}
    for device, row in enumerate(zip(*(row for column in columns for row in column), strict=True)):
        kinds.setdefault(row, []).append(device)
    firsts = [found[0] for found in kinds.values()]
    by_kind = [tuple(tuple(row[first] for first in firsts) for row in column) for column in columns]
    return Loads(
        kinds=tuple(tuple(found) for found in kinds.values()),
        update=by_kind[0],
        rollout=by_kind[1],
        buffer=by_kind[2],
        received=by_kind[3],
    )


def _trained(stack: Stack, layout: Layout, widths: Widths, found: list[int]) -> list[int]:
    for tensor in stack.tensors:
        item = widths.held_to_train(tensor)
        for box, devices in layout.holders(tensor).items():
            _add(found, devices, box.items * item)
    return found


def _generated(stack: Stack, layout: Layout, widths: Widths, found: list[int]) -> list[int]:
    for tensor in stack.tensors:
        for box, devices in layout.holders(tensor).items():
            _add(found, devices, widths.held_to_generate(tensor, box.size[: len(tensor.shape)]))
    return found


def _sent(stack: Stack, moves: Iterable[Move], widths: Widths, found: list[int]) -> list[int]:
    item = [widths.sent(tensor) for tensor in stack.tensors]
    for move in moves:
        if not move.copies:
            found[move.source] += move.box.items * item[move.tensor]
    return found


def _received(stack: Stack, moves: Iterable[Move], widths: Widths, found: list[int]) -> list[int]:
    item = [widths.sent(tensor) for tensor in stack.tensors]
    for move in moves:
        if not move.copies:
            _add(found, move.targets, move.box.items * item[move.tensor])
    return found


def _add(found: list[int], devices: Iterable[int], size: int) -> None:
    for device in devices:
        found[device] += size
