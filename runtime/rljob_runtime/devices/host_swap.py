"""Tensors' memory from the device to the host and back, beside the computation.

For weights and optimizer states that rest while the device does something else. Knows no device. Sums of
bits, taken where they leave and compared where they are used again, tell what the host or the way changed.
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
        swapped = SwappedOut(self._stream, copies)
        swapped.again()
        return swapped


class SwappedOut:
    """Storages whose bytes are on the host: `release`, then `back`, then `ready`, maybe `again`."""

    def __init__(
        self, stream: SideStream, copies: list[tuple[torch.UntypedStorage, Tensor]]
    ) -> None:
        self._stream = stream
        self._copies = copies
        self._number_of = {id(storage): number for number, (storage, _) in enumerate(copies)}
        self._left: dict[int, Tensor] = {}
        self._came: dict[int, Tensor] = {}
        self._mark: Mark = stream.mark()

    @property
    def num_bytes(self) -> int:
        """Bytes on the host."""
        return sum(host.nbytes for _, host in self._copies)

    def held(self, tensor: Tensor) -> Tensor:
        """The values of a tensor that is released, on the host: a view of what comes back. Raises
        WeightsError as `ready`."""
        number = self._number_of[id(tensor.untyped_storage())]
        rested = self._copies[number][1]
        check_rested(self._left, {number: bit_sum(rested)})
        host = rested.view(tensor.dtype)
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
            for number, (storage, host) in enumerate(self._copies):
                data = _bytes_of(storage).copy_(host, non_blocking=True)
                self._came[number] = bit_sum(data)
        self._mark = self._stream.mark()

    def ready(self) -> None:
        """The main stream's later work sees the tensors as they were. Raises WeightsError where a bit
        differs."""
        self._mark.hold_main()
        came, self._came = self._came, {}
        check_rested(self._left, came)

    def again(self) -> None:
        """Begin to copy what is ready to the same host memory; `release` comes next."""
        with self._stream.queue():
            for number, (storage, host) in enumerate(self._copies):
                data = _bytes_of(storage)
                host.copy_(data, non_blocking=True)
                self._left[number] = bit_sum(data)
        self._mark = self._stream.mark()


def bit_sum(data: Tensor) -> Tensor:
    """int64 [], which changes with any bit. data: uint8 [N]."""
    whole = len(data) // 8 * 8
    return data[:whole].view(torch.int64).sum() + data[whole:].sum(dtype=torch.int64)


def check_rested(left: Mapping[Key, Tensor], came: Mapping[Key, Tensor]) -> None:
    """Raise WeightsError unless the sums of what came are those of what had left. The host waits for them."""
    if not came:
        return
    differ = torch.stack([left[key] for key in came]).cpu() != torch.stack([*came.values()]).cpu()
    if wrong := [key for key, other in zip(came, differ.tolist(), strict=True) if other]:
        raise WeightsError(
            f"bits of {len(wrong)} of {len(came)} tensors (such as {wrong[0]}) changed while they rested on "
            "the host; the run stops, resume from the last checkpoint"
        )


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
