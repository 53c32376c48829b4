"""Deliver new weights to the engine that a device generates with. The device worker calls it through its
states.

There are two kinds. `reshard_state` moves slices by a plan, between engines of rljob. `weight_sync` sends
full tensors, one at a time, to engines that accept nothing else.
"""

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.record.reports import SyncReport


class Port(Protocol):
    """One device's end of the transfer. All devices call `run` together; those that train call `send`."""

    @property
    def planned(self) -> bool:
        """Whether all devices that train exchange weights with separated ones; otherwise only the first
        does."""
        ...

    def join(self, group: SyncGroup) -> None:
        """Exchange weights with separated devices, which all join, from now on. Raises WorkerError when one
        does not join."""
        ...

    def leave(self) -> None:
        """Stop exchanging weights with separated devices."""
        ...

    def run(self, version: int) -> SyncReport:
        """Load version `version` into the rollout engines and verify it. Raises WeightsError where it differs
        from the trained weights, WorkerError when another device is lost."""
        ...

    def send(self, version: int) -> SyncReport:
        """Act as `run` on devices that train, while the receivers continue to generate and receive it by
        `in_flight`."""
        ...

    def end_generation(self) -> None:
        """Free memory for the following work, where there is any to free."""
        ...

    def ready_to_train(self) -> None:
        """Put the update's weights on the device before the following computations."""
        ...

    def values(self, tensor: Tensor) -> Tensor:
        """Return the current values of a live tensor of the policy, on the device or on the host."""
        ...
