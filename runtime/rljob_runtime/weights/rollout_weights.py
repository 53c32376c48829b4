"""The weights that a device generates with, by Hugging Face name, whose memory comes and goes.

Called by the reshard state. Names share storages (queries, keys and values; gate and up; a stack of experts):
a storage comes with the first of its names.
"""

from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger


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

    def make(self, name: str) -> Tensor:
        """The slice, uninitialised where it was freed. Raises DeviceMemoryError."""
        tensor = self.slices[name]
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
