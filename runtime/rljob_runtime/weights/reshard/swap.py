"""Update weights that are swapped to the host while the device generates, and copied back before it trains.

Called by the strategies. Host memory is allocated once and kept, since page-locked memory is expensive to
allocate. Copies use a separate side stream in both directions.
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


class SwappedTensors:
    """Tensors of a device and their memory on the host, by storage: tensors that share one move together.

    tensors: by name; those that are swapped with the weights, such as an optimizer's state, too. kind: of
    what is copied back, in the ledger. back_seconds, waited_seconds: of the last copy back, its full duration
    and the host's wait in `ready`; leave_seconds, leave_waited_seconds: the same of the copy to the host
    before it. Raises ConfigError when the host has no memory for them.
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
        self._names_on_device = dict.fromkeys(self._storages, 0)
        for key in self._storage_of.values():
            self._names_on_device[key] += 1
        self._names_per_storage = dict(self._names_on_device)
        self._copies_back: list[Mark] = []
        self._host_sums: dict[int, Tensor] = {}
        self._copied_sums: dict[int, Tensor] = {}
        self.back_seconds = self.waited_seconds = 0.0
        self.leave_seconds = self.leave_waited_seconds = 0.0

    def leave(self, names: Sequence[str]) -> Callable[[], None]:
        """Begin to copy to the host the storages that only these tensors still keep. The returned function
        waits for it and frees the device memory."""
        leaving = []
        for name in names:
            key = self._storage_of[name]
            self._names_on_device[key] -= 1
            if not self._names_on_device[key]:
                leaving.append(key)

        def copy() -> None:
            started = time.perf_counter()
            for key in leaving:
                data = _bytes_of(self._storages[key])
                self._host[key].copy_(data, non_blocking=True)
                self._host_sums[key] = bit_sum(data)
            self.leave_seconds += time.perf_counter() - started

        mark = self._stream.run(copy)

        def finish() -> None:
            started = time.perf_counter()
            mark.wait()
            self.leave_waited_seconds += time.perf_counter() - started
            for key in leaving:
                self._storages[key].resize_(0)

        return finish

    def back(self) -> None:
        """Allocate device memory for all swapped tensors, and begin to copy them back, without blocking host
        or device. Raises DeviceMemoryError, with nothing changed, when the device has no room."""
        self.leave_seconds = self.leave_waited_seconds = 0.0
        swapped_out = [key for key in self._host if self._is_on_host(key)]
        self._backend.ledger.require(self._kind, sum(self._host[key].nbytes for key in swapped_out))
        for key in swapped_out:
            self._storages[key].resize_(self._host[key].nbytes)
        # also for tensors that were to leave when a reshard failed
        self._names_on_device = dict(self._names_per_storage)
        self._backend.ledger.track(
            self._kind, [_bytes_of(self._storages[key]) for key in swapped_out]
        )

        def copy() -> None:
            started = time.perf_counter()
            for key in swapped_out:
                data = _bytes_of(self._storages[key])
                self._copied_sums[key] = bit_sum(data.copy_(self._host[key], non_blocking=True))
            self.back_seconds = time.perf_counter() - started

        self._copies_back.append(self._stream.run(copy))

    def ready(self) -> None:
        """Make the main stream wait until the tensors are restored. Raises WeightsError where a bit
        differs."""
        if not self._copies_back:
            return
        started = time.perf_counter()
        for mark in self._copies_back:
            mark.hold_main()
        self._copies_back.clear()
        copied_sums, self._copied_sums = self._copied_sums, {}
        self._check(copied_sums)
        self.waited_seconds = time.perf_counter() - started

    def values(self, tensor: Tensor) -> Tensor:
        """Return a live tensor's values: a view of the host's memory while it is swapped out. Raises
        WeightsError as `ready`."""
        key = id(tensor.untyped_storage())
        if key not in self._host or not self._is_on_host(key):
            self.ready()
            return tensor
        self._check({key: bit_sum(self._host[key])})
        on_host = self._host[key].view(tensor.dtype)
        first = on_host.storage_offset() + tensor.storage_offset()
        return on_host.as_strided(tensor.shape, tensor.stride(), first)

    def _check(self, copied_sums: Mapping[int, Tensor]) -> None:
        names = {key: name for name, key in self._storage_of.items()}
        verify_bit_sums(
            {names[key]: self._host_sums[key] for key in copied_sums},
            {names[key]: total for key, total in copied_sums.items()},
        )

    def _is_on_host(self, key: int) -> bool:
        """Return whether the storage has no byte on the device."""
        return self._storages[key].nbytes() < self._host[key].nbytes

    @property
    def largest_shared(self) -> int:
        """Bytes of the largest storage that several tensors share; 0 where none does."""
        shared = (key for key, number in self._names_per_storage.items() if number > 1)
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
