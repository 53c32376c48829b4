"""One step of a plan whose bytes both ends keep, so that only changes are sent. Called by `exchange`.

It lives as long as its plan: a device that is new, or rejoins, has another plan with all others, whose first
exchange is full. The sums of a reshard verify that both ends hold the same.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import TransferStep
from rljob_runtime.devices.wire import Pending, start_broadcast, start_receive, start_send
from rljob_runtime.weights.reshard.deltas import Delta, decode, encode, payload_bytes
from rljob_runtime.weights.reshard.parcels import LocalView, Parcel

FULL_PARCEL = -1
"""Stored in a head in place of its number of changes; a full parcel follows."""


class DeltaStep:
    """A `CollectiveStep` that sends deltas, for every reshard of a plan.

    Each sender sends a head, int64 [4]: the exchanges before this one, and of a delta the numbers of its
    changes, of medium and of large ones. Then it sends its payload, or all bytes of its parcel where those
    are fewer. received_bytes: those from others in the last exchange.
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
        self.devices, self._like = step.group, like
        self._parcels = {source: Parcel(pieces, sent) for source, pieces in step.pieces.items()}
        self._last_bytes: dict[int, Tensor] = {}
        self._new: Tensor | None = None
        self._heads: dict[int, Tensor] = {}
        self._payloads: dict[int, Tensor] = {}
        self.exchanges = self.received_bytes = 0

    def allocate(self) -> list[Tensor]:
        """Return the buffers that this exchange allocates in addition to the kept ones."""
        allocated = []
        for source, parcel in self._parcels.items():
            if source == self._device:
                self._new = self._like.new_empty(parcel.num_bytes, dtype=torch.uint8)
                allocated.append(self._new)
            elif source not in self._last_bytes:
                last_bytes = self._like.new_empty(parcel.num_bytes, dtype=torch.uint8)
                self._last_bytes[source] = last_bytes
                allocated.append(last_bytes)
        return allocated

    def start(self, local_view: LocalView) -> list[Pending]:
        """Send heads. Raises as `CollectiveStep.start`."""
        self.received_bytes = 0
        for source, parcel in self._parcels.items():
            if source != self._device:
                self._heads[source] = self._like.new_zeros(4, dtype=torch.int64)
                continue
            assert self._new is not None, "an exchange has its memory first"
            parcel.fill(self._new, local_view)
            last = self._last_bytes.get(source)
            delta = None if last is None else encode(self._new, last)
            counts = [FULL_PARCEL, 0, 0] if delta is None else [*delta[1:]]
            head = torch.tensor([self.exchanges, *counts], dtype=torch.int64)
            self._heads[source] = head.to(self._like.device)
            self._last_bytes[source] = self._new
            self._payloads[source] = self._new if delta is None else delta.payload
            self._new = None
        return [self._send(source, head) for source, head in self._heads.items()]

    def follow(self) -> list[Pending]:
        """Send payloads, once the heads are received. Raises RuntimeError where the ends keep different
        versions."""
        for source, parcel in self._parcels.items():
            if source == self._device:
                continue
            previous, *counts = self._heads[source].tolist()
            if previous != self.exchanges:
                raise RuntimeError(
                    f"rank {source} sends changes since its exchange {previous} of this plan, and rank "
                    f"{self._device} keeps that of {self.exchanges}"
                )
            is_full = counts[0] == FULL_PARCEL
            size = parcel.num_bytes if is_full else payload_bytes(*counts)
            self._payloads[source] = (
                self._last_bytes[source]
                if is_full
                else self._like.new_empty(size, dtype=torch.uint8)
            )
            self.received_bytes += size + self._heads[source].nbytes
        return [self._send(source, self._payloads[source]) for source in self._parcels]

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield the pieces that others sent, once received."""
        for source, parcel in self._parcels.items():
            if source == self._device:
                continue
            _, *counts = self._heads[source].tolist()
            if counts[0] != FULL_PARCEL:
                decode(Delta(self._payloads[source], *counts), self._last_bytes[source])
            yield from parcel.views(self._last_bytes[source])
        self.exchanges += 1

    def release(self) -> None:
        """Free the payloads, once the pieces are copied; the kept bytes stay."""
        self._payloads.clear()
        self._heads.clear()

    def _send(self, source: int, values: Tensor) -> Pending:
        """Broadcast among the step's group, or send to its other device."""
        members = self._step.group
        if self._group is not None:
            if not values.numel():
                return Pending(values)
            return start_broadcast(values, members.index(source), self._group)
        (other,) = set(members) - {self._device}
        if source == self._device:
            return start_send(values, other, self._world_group)
        return start_receive(values, source, self._world_group)
