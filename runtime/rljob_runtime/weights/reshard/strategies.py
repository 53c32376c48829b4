"""Weights to the rollout layout and back, by `spec.resharding.strategy`. Called by the device worker.

In each step of a job: `to_rollout`, generation, `prefetch` while inference states run, `to_update`, training.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.backend import Backend
from rljob_runtime.weights.reshard.executor import New, Resharder
from rljob_runtime.weights.reshard.swap import Resting


class Strategy(Protocol):
    """All devices of the plan go through `to_rollout` together; the rest is each device's own. resting: what
    goes to the host."""

    resting: Resting | None

    def to_rollout(self, new: New) -> Iterator[tuple[str, Tensor]]:
        """The slices to generate with, by Hugging Face name, of `new` tensors, as they come."""
        ...

    def prefetch(self) -> None:
        """Begin to bring back what left the device, as soon as generation has made room (weights to generate
        with, KV cache); raises DeviceMemoryError when it has not. Needs not be called."""
        ...

    def to_update(self) -> None:
        """Afterwards the weights to train are there as they were; nothing is resharded."""
        ...


class AllgatherSwap:
    """The update weights are on the host while the device generates (arXiv:2507.19017, allgather-swap):
    R of Eq. 3 is 0. update: this device's slices of the layout that trains, by Hugging Face name."""

    def __init__(
        self, resharder: Resharder, update: Mapping[str, Tensor], backend: Backend
    ) -> None:
        self._resharder, self._update = resharder, update
        self._resting = Resting(update, backend)
        self.resting: Resting | None = self._resting
        self._away = False

    def to_rollout(self, new: New) -> Iterator[tuple[str, Tensor]]:
        """The update weights of each bucket leave behind it."""
        self.to_update()
        self._away = True
        yield from self._resharder.run(self._update, new, release=self._resting.leave)

    def prefetch(self) -> None:
        """Copies go over a side stream."""
        if self._away:
            self._resting.back()
            self._away = False

    def to_update(self) -> None:
        """Waits for what `prefetch` began, or begins it."""
        self.prefetch()
        self._resting.ready()


class Allgather:
    """The baseline: the weights of both layouts stay on the device (arXiv:2507.19017, Fig. 3)."""

    def __init__(
        self, resharder: Resharder, update: Mapping[str, Tensor], backend: Backend
    ) -> None:
        self._resharder, self._update = resharder, update
        self.resting: Resting | None = None

    def to_rollout(self, new: New) -> Iterator[tuple[str, Tensor]]:
        """Nothing leaves."""
        return self._resharder.run(self._update, new)

    def prefetch(self) -> None:
        """Nothing left."""

    def to_update(self) -> None:
        """They are there."""


STRATEGIES: dict[str, Callable[[Resharder, Mapping[str, Tensor], Backend], Strategy]] = {
    "allgather": Allgather,
    "allgather-swap": AllgatherSwap,
}
