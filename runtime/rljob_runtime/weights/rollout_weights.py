"""Memory of the weights that a device generates with, which comes and goes.

Called by the reshard state. An engine whose weights are tensors of this process has them in storages that
names share (queries, keys and values; gate and up; a stack of experts): a storage comes with the first of its
names. One that keeps them in a form of its own takes each as it comes.
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
    """Weights to generate with: made again for each version, and freed. slices: as the engine has them."""

    def __init__(self, slices: Mapping[str, Tensor], ledger: MemoryLedger) -> None:
        self.slices, self._ledger = dict(slices), ledger
        storages = {id(s): s for s in (tensor.untyped_storage() for tensor in slices.values())}
        self._bytes = {key: (storage, storage.nbytes()) for key, storage in storages.items()}

    @property
    def num_bytes(self) -> int:
        """Of all of them."""
        return sum(size for _, size in self._bytes.values())

    @property
    def largest_shared(self) -> int:
        """Bytes of the largest storage that several names share; 0 where none does."""
        names = Counter(id(tensor.untyped_storage()) for tensor in self.slices.values())
        return max((self._bytes[key][1] for key, number in names.items() if number > 1), default=0)

    def make(self, piece: TensorBox) -> Tensor:
        """The live one."""
        tensor = self.slices[piece.tensor.name]
        storage, size = self._bytes[id(tensor.untyped_storage())]
        if storage.nbytes() == 0:
            self._ledger.require(MemoryKind.ROLLOUT_WEIGHTS, size)
            storage.resize_(size)
            self._ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
        return tensor

    def free(self) -> None:
        """All of them."""
        for storage, _ in self._bytes.values():
            storage.resize_(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassingWeights:
    """On the way into an engine that keeps weights in a form of its own: a slice is there until the engine
    has taken it, and nothing lasts. dtype: of the engine's weights; device: of torch."""

    dtype: torch.dtype
    device: torch.device
    ledger: MemoryLedger
    num_bytes: int = field(default=0, init=False)
    largest_shared: int = field(default=0, init=False)

    def make(self, piece: TensorBox) -> Tensor:
        """A new one."""
        dtype = weight_dtype(piece.tensor.name, self.dtype)
        self.ledger.require(MemoryKind.ROLLOUT_WEIGHTS, piece.box.items * dtype.itemsize)
        size = piece.box.size[: len(piece.tensor.shape)]
        tensor = torch.empty(size, dtype=dtype, device=self.device)
        self.ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
        return tensor

    def free(self) -> None:
        """Nothing is left."""


RolloutRoom = RolloutWeights | PassingWeights
"""Where the slices come to that a device generates with."""
