"""One step of a plan whose bytes both ends keep, so that only what changed travels. Called by `exchange`.

It lives as long as its plan: whoever is new, or comes again, has another plan with all others, whose first
exchange is whole. The sums of a reshard tell whether both ends hold the same.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import TransferStep
from rljob_runtime.devices.wire import Pending, start_broadcast, start_receive, start_send
from rljob_runtime.weights.reshard.deltas import Delta, decode, encode, payload_bytes
from rljob_runtime.weights.reshard.parcels import Parcel, View

WHOLE = -1
"""In the place of a head's number of changes."""


class DeltaStep:
    """As `Collective`, for every reshard of a plan.

    Each giver sends a head, int64 [4] (exchanges before this one, and of a delta the numbers of its changes,
    of medium and of large ones), then its payload, or all bytes of its parcel where those are fewer. kept:
    of each giver, what it gave last. came_bytes: in the last exchange, from others.
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
        self.devices, self._like = step.group, like
        self._parcels = {source: Parcel(pieces, sent) for source, pieces in step.pieces.items()}
        self._kept: dict[int, Tensor] = {}
        self._new: Tensor | None = None
        self._heads: dict[int, Tensor] = {}
        self._payloads: dict[int, Tensor] = {}
        self.exchanges = self.came_bytes = 0

    def allocate(self) -> list[Tensor]:
        """What this exchange takes beside what is kept."""
        made = []
        for source, parcel in self._parcels.items():
            if source == self._device:
                self._new = self._like.new_empty(parcel.num_bytes, dtype=torch.uint8)
                made.append(self._new)
            elif source not in self._kept:
                kept = self._like.new_empty(parcel.num_bytes, dtype=torch.uint8)
                self._kept[source] = kept
                made.append(kept)
        return made

    def start(self, own: View) -> list[Pending]:
        """Send heads. Raises as `Collective.start`."""
        self.came_bytes = 0
        for source, parcel in self._parcels.items():
            if source != self._device:
                self._heads[source] = self._like.new_zeros(4, dtype=torch.int64)
                continue
            assert self._new is not None, "an exchange has its memory first"
            parcel.fill(self._new, own)
            last = self._kept.get(source)
            delta = None if last is None else encode(self._new, last)
            counts = [WHOLE, 0, 0] if delta is None else [*delta[1:]]
            head = torch.tensor([self.exchanges, *counts], dtype=torch.int64)
            self._heads[source] = head.to(self._like.device)
            self._kept[source] = self._new
            self._payloads[source] = self._new if delta is None else delta.payload
            self._new = None
        return [self._send(source, head) for source, head in self._heads.items()]

    def follow(self) -> list[Pending]:
        """Send payloads, once the heads are there. Raises RuntimeError where the ends keep two versions."""
        for source, parcel in self._parcels.items():
            if source == self._device:
                continue
            before, *counts = self._heads[source].tolist()
            if before != self.exchanges:
                raise RuntimeError(
                    f"rank {source} sends changes since its exchange {before} of this plan, and rank "
                    f"{self._device} keeps that of {self.exchanges}"
                )
            whole = counts[0] == WHOLE
            size = parcel.num_bytes if whole else payload_bytes(*counts)
            self._payloads[source] = (
                self._kept[source] if whole else self._like.new_empty(size, dtype=torch.uint8)
            )
            self.came_bytes += size + self._heads[source].nbytes
        return [self._send(source, self._payloads[source]) for source in self._parcels]

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """What others gave, when it is there."""
        for source, parcel in self._parcels.items():
            if source == self._device:
                continue
            _, *counts = self._heads[source].tolist()
            if counts[0] != WHOLE:
                decode(Delta(self._payloads[source], *counts), self._kept[source])
            yield from parcel.views(self._kept[source])
        self.exchanges += 1

    def release(self) -> None:
        """Once the pieces are taken: what is kept stays."""
        self._payloads.clear()
        self._heads.clear()

    def _send(self, source: int, values: Tensor) -> Pending:
        """To the step's others, or from the source."""
        members = self._step.group
        if self._group is not None:
            if not values.numel():
                return Pending(values)
            return start_broadcast(values, members.index(source), self._group)
        (other,) = set(members) - {self._device}
        if source == self._device:
            return start_send(values, other, self._whole)
        return start_receive(values, source, self._whole)
