"""ZeRO 1 and 2 (arXiv:1910.02054): data parallel ranks shard the optimizer instead of replicating it.

The update engine calls this with the sums of `gradients`. A rank owns an even shard of each bucket of
parameters, steps it, and gathers the others' shards. The rule is AdamW's, element by element, so that the
weights equal those of one rank.
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
    """AdamW on this rank's shards. The parameters' storage becomes the buckets'.

    Raises DeviceMemoryError if AdamW's state does not fit.
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
        self._owned = [bucket.owned_slices(rank) for bucket in buckets]
        self._shards = [
            flat[bucket.slice_of(rank)] for bucket, flat in zip(buckets, self._flats, strict=True)
        ]
        # A slice of a matrix keeps two dims, by which weight decay distinguishes it from a norm.
        self._local = {
            bucket_slice.name: _shaped(
                shard[bucket_slice.offset :][: bucket_slice.stop - bucket_slice.start],
                parameters[bucket_slice.name],
            )
            for shard, owned in zip(self._shards, self._owned, strict=True)
            for bucket_slice in owned
        }
        widen_gradients(self._local)
        self._adamw = tracked_adamw(self._local, settings, ledger)

    def step(self, gradients: GradientShards, learning_rate: float) -> None:
        """Apply the gradients to this rank's shards, and gather the weights: their bytes once."""
        for shard, owned in zip(gradients.tensors, self._owned, strict=True):
            for bucket_slice in owned:
                local = self._local[bucket_slice.name]
                local.grad = shard[bucket_slice.offset :][: local.numel()].view_as(local)
        self._adamw.step(learning_rate)
        for local in self._local.values():
            local.grad = None
        gathered = [
            start_gather(shard, self._group, into=flat)
            for shard, flat in zip(self._shards, self._flats, strict=True)
        ]
        for pending in gathered:
            pending.wait()

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's shard of AdamW's state; `Bucket.owned_slices` gives its items of each
        parameter."""
        return self._adamw.state_dict()

    @property
    def first(self) -> dict[str, int]:
        """Return the first item of each parameter that this rank owns."""
        return {
            bucket_slice.name: bucket_slice.start for owned in self._owned for bucket_slice in owned
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` of the same rank among as many. Raises CheckpointError if it does not fit."""
        self._adamw.load_state_dict(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroItems:
    """Items that a rank keeps in an optimizer step. gradients: at their peak."""

    weights: int
    gradients: int
    moments: int


def zero_items(buckets: Sequence[Bucket], stage: int, rank: int) -> ZeroItems:
    """Return the items that a rank keeps of these buckets. stage: 0, 1 or 2."""
    full_items = sum(bucket.items for bucket in buckets)
    shard_items = sum(bucket.items // bucket.ranks for bucket in buckets)
    under_way = max(sum(bucket.items for bucket in buckets[i : i + 2]) for i in range(len(buckets)))
    owned = sum(
        bucket_slice.stop - bucket_slice.start
        for bucket in buckets
        for bucket_slice in bucket.owned_slices(rank)
    )
    parameters = sum(bucket_slice.stop for bucket in buckets for bucket_slice in bucket.slices)
    return ZeroItems(
        weights=full_items,
        gradients=shard_items + under_way if stage == 2 else full_items,
        moments=2 * (owned if stage else parameters),
    )


def zero_bytes(buckets: Sequence[Bucket], stage: int, *, passes: int, item_bytes: int) -> int:
    """Return the bytes that a rank sends in an optimizer step. passes: its backward passes; stage: 0,
    1 or 2."""
    total = 0
    for bucket in buckets:
        shard_bytes, ranks = bucket.items // bucket.ranks * item_bytes, bucket.ranks
        if stage == 0:
            total += sum_bytes(shard_bytes * ranks, ranks)
        else:
            scatters = passes if stage == 2 else 1
            total += scatters * scatter_sum_bytes(shard_bytes, ranks) + gather_bytes(
                shard_bytes, ranks
            )
    return total


def _lay_out(parameters: Mapping[str, Tensor], bucket: Bucket) -> Tensor:
    first = parameters[bucket.slices[0].name]
    flat = torch.zeros(bucket.items, dtype=first.dtype, device=first.device)
    for bucket_slice in bucket.slices:
        parameter = parameters[bucket_slice.name]
        view = flat[bucket_slice.offset :][: bucket_slice.stop].view_as(parameter)
        view.copy_(parameter.detach())
        parameter.data = view
    return flat


def _shaped(items: Tensor, parameter: Tensor) -> Tensor:
    return items[None] if parameter.ndim >= 2 else items
