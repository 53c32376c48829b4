"""Move weights to the rollout layout and back, by `spec.resharding.strategy`. Called by the device worker.

A step of a job calls `to_rollout`, generates, calls `prefetch` while inference states run, then `to_update`,
and trains.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.backend import Backend
from rljob_runtime.weights.reshard.executor import NewTensor, Resharder
from rljob_runtime.weights.reshard.swap import SwappedTensors


class Strategy(Protocol):
    """How weights change layout. All devices of the plan call `to_rollout` together; the other calls are
    local. swapped: the tensors that are swapped to the host."""

    swapped: SwappedTensors | None

    def to_rollout(self, new: NewTensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the slices to generate with, by Hugging Face name, in `new` tensors, as they arrive."""
        ...

    def prefetch(self) -> None:
        """Begin to copy back the swapped tensors, as soon as generation has freed memory (weights to generate
        with, KV cache). Raises DeviceMemoryError when it has not. The call is optional."""
        ...

    def to_update(self) -> None:
        """Restore the weights to train unchanged; nothing is resharded."""
        ...


class AllgatherSwap:
    """The update weights are on the host while the device generates (arXiv:2507.19017, allgather-swap): R of
    Eq. 3 is 0. update: this device's slices of the layout that trains, by Hugging Face name."""

    def __init__(
        self, resharder: Resharder, update: Mapping[str, Tensor], backend: Backend
    ) -> None:
        self._resharder, self._update = resharder, update
        self._swapped = SwappedTensors(update, backend)
        self.swapped: SwappedTensors | None = self._swapped
        self._is_swapped_out = False

    def to_rollout(self, new: NewTensor) -> Iterator[tuple[str, Tensor]]:
        """Reshard bucket by bucket; the update weights of each bucket leave the device after it."""
        self.to_update()
        self._is_swapped_out = True
        yield from self._resharder.run(self._update, new, release=self._swapped.leave)

    def prefetch(self) -> None:
        """Begin the copies over a side stream."""
        if self._is_swapped_out:
            self._swapped.back()
            self._is_swapped_out = False

    def to_update(self) -> None:
        """Wait for the copies of `prefetch`, or begin them."""
        self.prefetch()
        self._swapped.ready()


class Allgather:
    """The baseline: the weights of both layouts stay on the device (arXiv:2507.19017, Fig. 3)."""

    def __init__(
        self, resharder: Resharder, update: Mapping[str, Tensor], backend: Backend
    ) -> None:
        self._resharder, self._update = resharder, update
        self.swapped: SwappedTensors | None = None

    def to_rollout(self, new: NewTensor) -> Iterator[tuple[str, Tensor]]:
        """Reshard; no weights leave the device."""
        return self._resharder.run(self._update, new)

    def prefetch(self) -> None:
        """Do nothing, since nothing left the device."""

    def to_update(self) -> None:
        """Do nothing, since the weights are on the device."""


STRATEGIES: dict[str, Callable[[Resharder, Mapping[str, Tensor], Backend], Strategy]] = {
    "allgather": Allgather,
    "allgather-swap": AllgatherSwap,
}
