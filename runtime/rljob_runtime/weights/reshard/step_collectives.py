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
from rljob_runtime.weights.reshard.parcels import Parcel, View

WIDEST_BYTES = 4


class Collective:
    """A step's buffers, made here. sent: type on the way of all but what decides between experts.

    group: None for two devices, which send over `whole`, that of all devices. Bytes: those of `step`, on each
    device. devices: that give or take.
    """

    def __init__(
        self,
        step: TransferStep,
        device: int,
        *,
        sent: torch.dtype,
        group: ProcessGroup | None,
        whole: ProcessGroup | None,
        like: Tensor,
    ) -> None:
        self._step, self._device, self._group, self._whole = step, device, group, whole
        self.devices = step.group
        self._parcels = {source: Parcel(pieces, sent) for source, pieces in step.pieces.items()}
        sizes = {source: parcel.num_bytes for source, parcel in self._parcels.items()}
        even = len(set(sizes.values())) == 1 and not next(iter(sizes.values())) % WIDEST_BYTES
        self._gathers = step.kind == "gather" and even and group is not None
        if self._gathers:
            gathered = like.new_empty(step.bytes, dtype=torch.uint8)
            parts = torch.split(gathered, next(iter(sizes.values())))
            self.buffers = [gathered]
            self._parts = dict(zip(step.group, parts, strict=True))
        else:
            self.buffers = [like.new_empty(size, dtype=torch.uint8) for size in sizes.values()]
            self._parts = dict(zip(sizes, self.buffers, strict=True))

    def start(self, own: View) -> list[Pending]:
        """Lay this device's pieces into their buffer and begin. Raises RuntimeError, there or in a wait,
        when a device is gone, or after the group's timeout."""
        if self._device in self._parcels:
            self._parcels[self._device].fill(self._parts[self._device], own)
        return list(self._start())

    def follow(self) -> list[Pending]:
        """Nothing does."""
        return []

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """What others gave, when it is there."""
        for source, parcel in self._parcels.items():
            if source != self._device:
                yield from parcel.views(self._parts[source])

    def release(self) -> None:
        """Once the pieces are taken. gloo's own threads keep what they sent a moment longer than this object
        lives, and its memory counts."""
        for buffer in self.buffers:
            if buffer.is_cpu:
                buffer.untyped_storage().resize_(0)

    def _start(self) -> Iterator[Pending]:
        group, members = self._group, self._step.group
        if group is None:
            (other,) = set(members) - {self._device}
            for source, buffer in self._parts.items():
                sends = source == self._device
                yield (
                    start_send(buffer, other, self._whole)
                    if sends
                    else start_receive(buffer, source, self._whole)
                )
        elif self._gathers:
            yield start_gather(self._parts[self._device], group, into=self.buffers[0])
        else:
            for source, buffer in self._parts.items():
                yield start_broadcast(buffer, members.index(source), group)
