"""Count the bytes that a member of each stack takes on each device. Called by `resharding_plan`; read by
`buckets` and `figures`.

Devices with equal loads form a kind, which is counted once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_plan.resharding.layouts import LayoutTable
from rljob_plan.resharding.routes import Move
from rljob_plan.resharding.stacks import Stack
from rljob_plan.resharding.widths import Widths

Row = tuple[int, ...]
"""A row of bytes, by kind of device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Rows of a member of each stack. kinds: the devices of each kind.

    update, rollout: weights in either layout. buffer: what a device sends and receives, each byte once.
    received: what comes from other devices.
    """

    kinds: tuple[tuple[int, ...], ...]
    update: tuple[Row, ...]
    rollout: tuple[Row, ...]
    buffer: tuple[Row, ...]
    received: tuple[Row, ...]

    def total(self, rows: Sequence[Row], times: Iterable[tuple[int, int]]) -> list[int]:
        """Return the sum of some stacks' rows. times: (stack, members)."""
        sums = [0] * len(self.kinds)
        for stack, members in times:
            sums = [size + members * more for size, more in zip(sums, rows[stack], strict=True)]
        return sums


def find_loads(
    stacks: Sequence[Stack],
    moves: Sequence[Sequence[Move]],
    update: LayoutTable,
    rollout: LayoutTable,
    widths: Widths,
) -> Loads:
    """Return the loads of all stacks. moves: those of one member of each stack."""
    number = max(update.devices.stop, rollout.devices.stop)
    columns: list[list[list[int]]] = [[], [], [], []]
    for stack, stack_moves in zip(stacks, moves, strict=True):
        columns[0].append(_trained(stack, update, widths, [0] * number))
        columns[1].append(_generated(stack, rollout, widths, [0] * number))
        sent = _sent(stack, stack_moves, widths, [0] * number)
        columns[3].append(_received(stack, stack_moves, widths, [0] * number))
        columns[2].append([a + b for a, b in zip(sent, columns[3][-1], strict=True)])
    kinds: dict[Row, list[int]] = {}
    for device, row in enumerate(zip(*(row for column in columns for row in column), strict=True)):
        kinds.setdefault(row, []).append(device)
    firsts = [devices[0] for devices in kinds.values()]
    by_kind = [tuple(tuple(row[first] for first in firsts) for row in column) for column in columns]
    return Loads(
        kinds=tuple(tuple(devices) for devices in kinds.values()),
        update=by_kind[0],
        rollout=by_kind[1],
        buffer=by_kind[2],
        received=by_kind[3],
    )


def _trained(stack: Stack, layout: LayoutTable, widths: Widths, sizes: list[int]) -> list[int]:
    for tensor in stack.tensors:
        item = widths.update_item_bytes(tensor)
        for box, devices in layout.holders(tensor).items():
            _add(sizes, devices, box.items * item)
    return sizes


def _generated(stack: Stack, layout: LayoutTable, widths: Widths, sizes: list[int]) -> list[int]:
    for tensor in stack.tensors:
        for box, devices in layout.holders(tensor).items():
            _add(sizes, devices, widths.rollout_bytes(tensor, box.size[: len(tensor.shape)]))
    return sizes


def _sent(stack: Stack, moves: Iterable[Move], widths: Widths, sizes: list[int]) -> list[int]:
    item = [widths.sent(tensor) for tensor in stack.tensors]
    for move in moves:
        if not move.copies:
            sizes[move.source] += move.box.items * item[move.tensor]
    return sizes


def _received(stack: Stack, moves: Iterable[Move], widths: Widths, sizes: list[int]) -> list[int]:
    item = [widths.sent(tensor) for tensor in stack.tensors]
    for move in moves:
        if not move.copies:
            _add(sizes, move.targets, move.box.items * item[move.tensor])
    return sizes


def _add(sizes: list[int], devices: Iterable[int], size: int) -> None:
    for device in devices:
        sizes[device] += size
