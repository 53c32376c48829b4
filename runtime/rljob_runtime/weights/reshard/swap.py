"""Update weights that rest on the host while the device generates, and come back before it trains.

Called by the strategies. Memory on the host is taken once, and kept: page-locked memory is dear to make.
Copies go over a side stream of their own, in both directions.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rljob_runtime.devices.backend import Backend, Mark
from rljob_runtime.devices.host import host_bytes
from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.devices.host_swap import bit_sum, verify_bit_sums
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import ConfigError

GIB = 2**30


class Resting:
    """Tensors of a device and their room on the host, by storage: what shares one, goes and comes as one.

    tensors: by name; those that are swapped with the weights, such as an optimizer's state, too. kind: of
    what comes back, in the ledger. back_seconds, waited_seconds: of the last copy back, all of it and what
    the host waited for in `ready`; leave_seconds, leave_waited_seconds: the same of what
    left before it. Raises ConfigError when the host has no memory for them.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        backend: Backend,
        *,
        kind: MemoryKind = MemoryKind.UPDATE_WEIGHTS,
    ) -> None:
        self._backend, self._kind = backend, kind
        self._stream = backend.side_stream()
        self._storages = {id(s): s for s in (t.untyped_storage() for t in tensors.values())}
        self._storage_of = {name: id(t.untyped_storage()) for name, t in tensors.items()}
        self.num_bytes = sum(storage.nbytes() for storage in self._storages.values())
        self._require_host_memory(host_bytes())
        sizes = {key: storage.nbytes() for key, storage in self._storages.items()}
        arena = HostArena(backend.host_buffer, sizes)
        self._host = {key: arena[key] for key in sizes}
        self._staying = dict.fromkeys(self._storages, 0)
        for key in self._storage_of.values():
            self._staying[key] += 1
        self._names = dict(self._staying)
        self._coming: list[Mark] = []
        self._sums: dict[int, Tensor] = {}
        self._came: dict[int, Tensor] = {}
        self.back_seconds = self.waited_seconds = 0.0
        self.leave_seconds = self.leave_waited_seconds = 0.0

    def leave(self, names: Sequence[str]) -> Callable[[], None]:
        """Begin to copy to the host what these tensors alone still hold; the function that is returned
        waits for it and gives the device memory back."""
        going = []
        for name in names:
            key = self._storage_of[name]
            self._staying[key] -= 1
            if not self._staying[key]:
                going.append(key)

        def copy() -> None:
            started = time.perf_counter()
            for key in going:
                data = _bytes_of(self._storages[key])
                self._host[key].copy_(data, non_blocking=True)
                self._sums[key] = bit_sum(data)
            self.leave_seconds += time.perf_counter() - started

        mark = self._stream.run(copy)

        def end() -> None:
            started = time.perf_counter()
            mark.wait()
            self.leave_waited_seconds += time.perf_counter() - started
            for key in going:
                self._storages[key].resize_(0)

        return end

    def back(self) -> None:
        """Take device memory for all that left, and begin to copy it back; the host goes on, and so may
        the device. Raises DeviceMemoryError, with nothing changed, when it has no room."""
        self.leave_seconds = self.leave_waited_seconds = 0.0
        gone = [key for key in self._host if self._left(key)]
        self._backend.ledger.require(self._kind, sum(self._host[key].nbytes for key in gone))
        for key in gone:
            self._storages[key].resize_(self._host[key].nbytes)
        self._staying = dict(self._names)  # also of what was to leave when a reshard failed
        self._backend.ledger.track(self._kind, [_bytes_of(self._storages[key]) for key in gone])

        def copy() -> None:
            started = time.perf_counter()
            for key in gone:
                data = _bytes_of(self._storages[key])
                self._came[key] = bit_sum(data.copy_(self._host[key], non_blocking=True))
            self.back_seconds = time.perf_counter() - started

        self._coming.append(self._stream.run(copy))

    def ready(self) -> None:
        """The main stream's later work sees the tensors as they were. Raises WeightsError where a bit
        differs."""
        if not self._coming:
            return
        started = time.perf_counter()
        for mark in self._coming:
            mark.hold_main()
        self._coming.clear()
        came, self._came = self._came, {}
        self._check(came)
        self.waited_seconds = time.perf_counter() - started

    def values(self, tensor: Tensor) -> Tensor:
        """Of a live tensor, wherever they are: a view of the host's memory while it is away. Raises
        WeightsError as `ready`."""
        key = id(tensor.untyped_storage())
        if key not in self._host or not self._left(key):
            self.ready()
            return tensor
        self._check({key: bit_sum(self._host[key])})
        on_host = self._host[key].view(tensor.dtype)
        first = on_host.storage_offset() + tensor.storage_offset()
        return on_host.as_strided(tensor.shape, tensor.stride(), first)

    def _check(self, came: Mapping[int, Tensor]) -> None:
        names = {key: name for name, key in self._storage_of.items()}
        verify_bit_sums(
            {names[key]: self._sums[key] for key in came},
            {names[key]: total for key, total in came.items()},
        )

    def _left(self, key: int) -> bool:
        """Whether the storage has no byte on the device."""
        return self._storages[key].nbytes() < self._host[key].nbytes

    @property
    def largest_shared(self) -> int:
        """Bytes of the largest storage that several tensors share; 0 where none does."""
        shared = (key for key, number in self._names.items() if number > 1)
        return max((self._host[key].nbytes for key in shared), default=0)

    def _require_host_memory(self, available: int) -> None:
        if self.num_bytes > available:
            raise ConfigError(
                f"resharding.strategy: allgather-swap keeps {self.num_bytes / GIB:.1f} GiB of update weights "
                f"of device {self._backend.ledger.device} on the host, which has {available / GIB:.1f} GiB "
                "left; give the pod more memory, or set resharding.strategy: allgather"
            )


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
