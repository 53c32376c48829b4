"""Tensors' memory from the device to the host and back, beside the computation.

For weights and optimizer states that rest while the device does something else. Knows no device.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from rljob_runtime.devices.backend import Backend, Mark, SideStream
from rljob_runtime.devices.host_arena import HostArena


class HostSwap:
    """Swaps over one side stream of the backend's device, in the order of the calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stream = backend.side_stream()

    def out(self, tensors: Iterable[Tensor]) -> "SwappedOut":
        """Begin to copy these tensors' storages, each once, to host memory made for them, and kept.

        They must not be written until `SwappedOut.release`, and not be used after it until
        `SwappedOut.ready`.
        """
        storages = {id(s): s for s in (tensor.untyped_storage() for tensor in tensors)}.values()
        sizes = {number: storage.nbytes() for number, storage in enumerate(storages)}
        arena = HostArena(self._backend.host_buffer, sizes)
        copies = [(storage, arena[number]) for number, storage in enumerate(storages)]
        with self._stream.queue():
            for storage, host in copies:
                host.copy_(_bytes_of(storage), non_blocking=True)
        return SwappedOut(self._stream, copies)


class SwappedOut:
    """Storages whose bytes are on the host: `release`, then `back`, then `ready`, maybe `again`."""

    def __init__(
        self, stream: SideStream, copies: list[tuple[torch.UntypedStorage, Tensor]]
    ) -> None:
        self._stream = stream
        self._copies = copies
        self._host_of = {id(storage): host for storage, host in copies}
        self._mark: Mark = stream.mark()

    @property
    def num_bytes(self) -> int:
        """Bytes on the host."""
        return sum(host.nbytes for _, host in self._copies)

    def held(self, tensor: Tensor) -> Tensor:
        """The values of a tensor that is released, on the host: a view of what comes back."""
        host = self._host_of[id(tensor.untyped_storage())].view(tensor.dtype)
        first = host.storage_offset() + tensor.storage_offset()
        return host.as_strided(tensor.shape, tensor.stride(), first)

    def release(self) -> None:
        """Wait for the copies, then give the device memory back: the storages are empty."""
        self._mark.wait()
        for storage, _ in self._copies:
            storage.resize_(0)

    def back(self) -> None:
        """Take device memory again and begin to copy back; the host goes on."""
        for storage, host in self._copies:
            storage.resize_(host.nbytes)
        with self._stream.queue():
            for storage, host in self._copies:
                _bytes_of(storage).copy_(host, non_blocking=True)
        self._mark = self._stream.mark()

    def ready(self) -> None:
        """The main stream's later work sees the tensors as they were."""
        self._mark.hold_main()

    def again(self) -> None:
        """Begin to copy what is ready to the same host memory; `release` comes next."""
        with self._stream.queue():
            for storage, host in self._copies:
                host.copy_(_bytes_of(storage), non_blocking=True)
        self._mark = self._stream.mark()


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
