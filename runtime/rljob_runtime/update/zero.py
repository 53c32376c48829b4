"""ZeRO 1 and 2 (arXiv:1910.02054): data parallel ranks share the optimizer instead of repeating it.

Called by the update engine, with what `gradients` added up. A rank owns an even part of each bucket of
parameters, steps it, and gathers the others' parts. The rule is AdamW's, element by element, so that the
weights are those of one rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.collectives import rank_of
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.devices.wire import start_gather
from rljob_runtime.parallel.volume import gather_bytes, scatter_sum_bytes, sum_bytes
from rljob_runtime.update.buckets import Bucket
from rljob_runtime.update.gradients import GradientShards
from rljob_runtime.update.optimizers import tracked_adamw
from rljob_runtime.update.precision import widen_gradients


class ShardedAdamW:
    """AdamW on this rank's parts. The parameters' storage becomes the buckets'.

    Raises DeviceMemoryError when AdamW's state does not fit.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        buckets: Sequence[Bucket],
        settings: Optimizer,
        *,
        group: ProcessGroup | None,
        ledger: MemoryLedger,
    ) -> None:
        self._buckets, self._group = buckets, group
        kind = ledger.kind_of(next(iter(parameters.values())))
        self._flats = [_lay_out(parameters, bucket) for bucket in buckets]
        ledger.track(kind or MemoryKind.UPDATE_WEIGHTS, self._flats)
        rank = rank_of(group)
        self._owned = [bucket.owned(rank) for bucket in buckets]
        self._parts = [
            flat[bucket.slice_of(rank)] for bucket, flat in zip(buckets, self._flats, strict=True)
        ]
        # A matrix's piece stays one of two dims: weight decay tells it from a norm by that.
        self._pieces = {
            piece.name: _shaped(
                part[piece.place :][: piece.stop - piece.start], parameters[piece.name]
            )
            for part, owned in zip(self._parts, self._owned, strict=True)
            for piece in owned
        }
        widen_gradients(self._pieces)
        self._adamw = tracked_adamw(self._pieces, settings, ledger)

    def step(self, gradients: GradientShards, learning_rate: float) -> None:
        """Apply the gradients to this rank's parts, and gather the weights: their bytes once."""
        for part, owned in zip(gradients.parts, self._owned, strict=True):
            for piece in owned:
                own = self._pieces[piece.name]
                own.grad = part[piece.place :][: own.numel()].view_as(own)
        self._adamw.step(learning_rate)
        for own in self._pieces.values():
            own.grad = None
        gathered = [
            start_gather(part, self._group, into=flat)
            for part, flat in zip(self._parts, self._flats, strict=True)
        ]
        for pending in gathered:
            pending.wait()

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's part of AdamW's state; `Bucket.owned` says which items of a parameter it is."""
        return self._adamw.state_dict()

    @property
    def first(self) -> dict[str, int]:
        """The first item of each parameter that is this rank's."""
        return {piece.name: piece.start for owned in self._owned for piece in owned}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` of the same rank of as many. Raises CheckpointError if it does not fit."""
        self._adamw.load_state_dict(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroItems:
    """Items that a rank keeps in an optimizer step. gradients: at their peak."""

    weights: int
    gradients: int
    moments: int


def zero_items(buckets: Sequence[Bucket], stage: int, rank: int) -> ZeroItems:
    """What a rank keeps of these buckets. stage: 0, 1 or 2."""
    whole = sum(bucket.items for bucket in buckets)
    parts = sum(bucket.items // bucket.ranks for bucket in buckets)
    under_way = max(sum(bucket.items for bucket in buckets[i : i + 2]) for i in range(len(buckets)))
    owned = sum(piece.stop - piece.start for bucket in buckets for piece in bucket.owned(rank))
    parameters = sum(piece.stop for bucket in buckets for piece in bucket.pieces)
    return ZeroItems(
        weights=whole,
        gradients=parts + under_way if stage == 2 else whole,
        moments=2 * (owned if stage else parameters),
    )


def zero_bytes(buckets: Sequence[Bucket], stage: int, *, passes: int, item_bytes: int) -> int:
    """Bytes that a rank sends in an optimizer step. passes: backward passes of it; stage: 0, 1 or 2."""
    total = 0
    for bucket in buckets:
        part, ranks = bucket.items // bucket.ranks * item_bytes, bucket.ranks
        if stage == 0:
            total += sum_bytes(part * ranks, ranks)
        else:
            scatters = passes if stage == 2 else 1
            total += scatters * scatter_sum_bytes(part, ranks) + gather_bytes(part, ranks)
    return total


def _lay_out(parameters: Mapping[str, Tensor], bucket: Bucket) -> Tensor:
    first = parameters[bucket.pieces[0].name]
    flat = torch.zeros(bucket.items, dtype=first.dtype, device=first.device)
    for piece in bucket.pieces:
        parameter = parameters[piece.name]
        view = flat[piece.place :][: piece.stop].view_as(parameter)
        view.copy_(parameter.detach())
        parameter.data = view
    return flat


def _shaped(items: Tensor, parameter: Tensor) -> Tensor:
    return items[None] if parameter.ndim >= 2 else items
