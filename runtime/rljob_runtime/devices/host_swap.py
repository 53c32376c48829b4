"""Swap tensors' memory from the device to the host and back, concurrently with computation.

For weights and optimizer states that are idle while the device does other work. Independent of the device
type. Checksums are computed before the copy and compared before the next use, which detects changed bits.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from rljob_runtime.devices.backend import Backend, Mark, SideStream
from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.errors import WeightsError

Key = TypeVar("Key", bound=Hashable)


class HostSwap:
    """Swaps tensors over one side stream of the backend's device, in the order of the calls."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._stream = backend.side_stream()

    def out(self, tensors: Iterable[Tensor]) -> "OffloadedTensors":
        """Begin to copy these tensors' storages, each once, to host memory that is allocated for them.

        They must not be written until `OffloadedTensors.release`, and not be used after it until
        `OffloadedTensors.ready`.
        """
        storages = {id(s): s for s in (tensor.untyped_storage() for tensor in tensors)}.values()
        sizes = {number: storage.nbytes() for number, storage in enumerate(storages)}
        arena = HostArena(self._backend.host_buffer, sizes)
        copies = [(storage, arena[number]) for number, storage in enumerate(storages)]
        swapped = OffloadedTensors(self._stream, copies)
        swapped.again()
        return swapped


class OffloadedTensors:
    """Storages whose bytes are on the host: call `release`, `back`, `ready`, and optionally `again`."""

    def __init__(
        self, stream: SideStream, copies: list[tuple[torch.UntypedStorage, Tensor]]
    ) -> None:
        self._stream = stream
        self._copies = copies
        self._number_of = {id(storage): number for number, (storage, _) in enumerate(copies)}
        self._left_sums: dict[int, Tensor] = {}
        self._back_sums: dict[int, Tensor] = {}
        self._mark: Mark = stream.mark()

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes on the host."""
        return sum(host.nbytes for _, host in self._copies)

    def host_view(self, tensor: Tensor) -> Tensor:
        """Return a released tensor's values as a view of the host memory. Raises WeightsError where a bit
        differs."""
        number = self._number_of[id(tensor.untyped_storage())]
        host_bytes = self._copies[number][1]
        verify_bit_sums(self._left_sums, {number: bit_sum(host_bytes)})
        host = host_bytes.view(tensor.dtype)
        offset = host.storage_offset() + tensor.storage_offset()
        return host.as_strided(tensor.shape, tensor.stride(), offset)

    def release(self) -> None:
        """Wait for the copies, then free the device memory: the storages are empty."""
        self._mark.wait()
        for storage, _ in self._copies:
            storage.resize_(0)

    def back(self) -> None:
        """Allocate device memory again and begin to copy back; the host continues."""
        for storage, host in self._copies:
            storage.resize_(host.nbytes)
        with self._stream.queue():
            for number, (storage, host) in enumerate(self._copies):
                data = _bytes_of(storage).copy_(host, non_blocking=True)
                self._back_sums[number] = bit_sum(data)
        self._mark = self._stream.mark()

    def ready(self) -> None:
        """Make the main stream's later work wait for the copies. Raises WeightsError where a bit differs."""
        self._mark.hold_main()
        back_sums, self._back_sums = self._back_sums, {}
        verify_bit_sums(self._left_sums, back_sums)

    def again(self) -> None:
        """Begin to copy the restored tensors to the same host memory again; `release` comes next."""
        with self._stream.queue():
            for number, (storage, host) in enumerate(self._copies):
                data = _bytes_of(storage)
                host.copy_(data, non_blocking=True)
                self._left_sums[number] = bit_sum(data)
        self._mark = self._stream.mark()


def bit_sum(data: Tensor) -> Tensor:
    """Return a checksum, int64 [], that changes with any bit. data: uint8 [N]."""
    aligned = len(data) // 8 * 8
    return data[:aligned].view(torch.int64).sum() + data[aligned:].sum(dtype=torch.int64)


def verify_bit_sums(before: Mapping[Key, Tensor], after: Mapping[Key, Tensor]) -> None:
    """Raise WeightsError unless the returned checksums equal those from before the copy. The host waits."""
    if not after:
        return
    difference = (
        torch.stack([before[key] for key in after]).cpu() != torch.stack([*after.values()]).cpu()
    )
    if changed := [key for key, differs in zip(after, difference.tolist(), strict=True) if differs]:
        raise WeightsError(
            f"bits of {len(changed)} of {len(after)} tensors (such as {changed[0]}) changed while they "
            "rested on the host; the run stops, resume from the last checkpoint"
        )


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
