"""Allocate and free the memory of the weights that a device generates with.

Called by the reshard state. An engine whose weights are tensors of this process has them in storages that
names share (queries, keys and values; gate and up; a stack of experts). Such a storage is allocated with the
first of its names. An engine with another format takes each slice as it is received.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.expert_names import weight_dtype


class RolloutWeights:
    """Weights to generate with, allocated for each version and then freed. slices: the engine's tensors."""

    def __init__(self, slices: Mapping[str, Tensor], ledger: MemoryLedger) -> None:
        self.slices, self._ledger = dict(slices), ledger
        storages = {id(s): s for s in (tensor.untyped_storage() for tensor in slices.values())}
        self._bytes = {key: (storage, storage.nbytes()) for key, storage in storages.items()}

    @property
    def num_bytes(self) -> int:
        """Bytes of all storages."""
        return sum(size for _, size in self._bytes.values())

    @property
    def largest_shared(self) -> int:
        """Bytes of the largest storage that several names share; 0 where none does."""
        names = Counter(id(tensor.untyped_storage()) for tensor in self.slices.values())
        return max((self._bytes[key][1] for key, number in names.items() if number > 1), default=0)

    def allocate(self, rollout_slice: TensorBox) -> Tensor:
        """Return the live tensor of a slice, with memory."""
        tensor = self.slices[rollout_slice.tensor.name]
        storage, size = self._bytes[id(tensor.untyped_storage())]
        if storage.nbytes() == 0:
            self._ledger.require(MemoryKind.ROLLOUT_WEIGHTS, size)
            storage.resize_(size)
            self._ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
        return tensor

    def free(self) -> None:
        """Free the memory of all slices."""
        for storage, _ in self._bytes.values():
            storage.resize_(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientWeights:
    """Slices for an engine that stores weights in another format. A slice exists until the engine has taken
    it; nothing is retained. dtype: of the engine's weights; device: of torch."""

    dtype: torch.dtype
    device: torch.device
    ledger: MemoryLedger
    num_bytes: int = field(default=0, init=False)
    largest_shared: int = field(default=0, init=False)

    def allocate(self, rollout_slice: TensorBox) -> Tensor:
        """Return a new tensor for a slice."""
        dtype = weight_dtype(rollout_slice.tensor.name, self.dtype)
        self.ledger.require(MemoryKind.ROLLOUT_WEIGHTS, rollout_slice.box.items * dtype.itemsize)
        size = rollout_slice.box.size[: len(rollout_slice.tensor.shape)]
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        self.ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
        return tensor

    def free(self) -> None:
        """Free nothing, since nothing is retained."""


RolloutBuffers = RolloutWeights | TransientWeights
"""The memory that receives the slices a device generates with."""
