"""One step of a plan on one device over a collective: parcels in buffers. Called by `exchange`."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import TransferStep
from rljob_runtime.devices.wire import (
    Pending,
    start_broadcast,
    start_gather,
    start_receive,
    start_send,
)
from rljob_runtime.weights.reshard.parcels import LocalView, Parcel

WIDEST_BYTES = 4


class CollectiveStep:
    """A step's buffers, which it allocates. sent: type in transit of all weights but the router's.

    group: None for two devices, which send over `world_group`, that of all devices. Bytes: those of `step`,
    on each device. devices: those that send or receive.
    """

    def __init__(
        self,
        step: TransferStep,
        device: int,
        *,
        sent: torch.dtype,
        group: ProcessGroup | None,
        world_group: ProcessGroup | None,
        like: Tensor,
    ) -> None:
        self._step, self._device, self._group, self._world_group = step, device, group, world_group
        self.devices = step.group
        self._parcels = {source: Parcel(pieces, sent) for source, pieces in step.pieces.items()}
        sizes = {source: parcel.num_bytes for source, parcel in self._parcels.items()}
        even = len(set(sizes.values())) == 1 and not next(iter(sizes.values())) % WIDEST_BYTES
        self._gathers = step.kind == "gather" and even and group is not None
        if self._gathers:
            gathered = like.new_empty(step.bytes, dtype=torch.uint8)
            shards = torch.split(gathered, next(iter(sizes.values())))
            self.buffers = [gathered]
            self._shards = dict(zip(step.group, shards, strict=True))
        else:
            self.buffers = [like.new_empty(size, dtype=torch.uint8) for size in sizes.values()]
            self._shards = dict(zip(sizes, self.buffers, strict=True))

    def start(self, local_view: LocalView) -> list[Pending]:
        """Copy this device's pieces into their buffer and start the collective. Raises RuntimeError, here or
        in a wait, when a device is lost, or after the group's timeout."""
        if self._device in self._parcels:
            self._parcels[self._device].fill(self._shards[self._device], local_view)
        return list(self._start())

    def follow(self) -> list[Pending]:
        """Start nothing: a collective has one phase."""
        return []

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield the pieces that others sent, once received."""
        for source, parcel in self._parcels.items():
            if source != self._device:
                yield from parcel.views(self._shards[source])

    def release(self) -> None:
        """Free the buffers, once the pieces are copied. gloo's threads keep sent buffers a moment longer than
        this object lives, and their memory counts."""
        for buffer in self.buffers:
            if buffer.is_cpu:
                buffer.untyped_storage().resize_(0)

    def _start(self) -> Iterator[Pending]:
        group, members = self._group, self._step.group
        if group is None:
            (other,) = set(members) - {self._device}
            for source, buffer in self._shards.items():
                sends = source == self._device
                yield (
                    start_send(buffer, other, self._world_group)
                    if sends
                    else start_receive(buffer, source, self._world_group)
                )
        elif self._gathers:
            yield start_gather(self._shards[self._device], group, into=self.buffers[0])
        else:
            for source, buffer in self._shards.items():
                yield start_broadcast(buffer, members.index(source), group)
