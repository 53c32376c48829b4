"""How new weights come to what a device generates with. Called by the device worker through its states.

Two kinds: `reshard_state` brings slices by a plan, between engines of rljob's own; `weight_sync` brings whole
tensors, one at a time, to engines that can only be given those.
"""

from typing import Protocol

from torch import Tensor

from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.record.reports import SyncReport


class Port(Protocol):
    """One device's end. All devices call `run` together, those that train `send`."""

    @property
    def planned(self) -> bool:
        """Whether all devices that train exchange weights with separated ones; otherwise the first alone."""
        ...

    def join(self, group: SyncGroup) -> None:
        """Exchange weights from now on with separated devices, which all join. Raises WorkerError when one
        does not come."""
        ...

    def leave(self) -> None:
        """With nobody any more."""
        ...

    def run(self, version: int) -> SyncReport:
        """Bring version `version` into the rollout engines, checked. Raises WeightsError where it is not what
        was trained, WorkerError when another device is gone."""
        ...

    def send(self, version: int) -> SyncReport:
        """As `run`, on devices that train, to others that go on generating and take it by `in_flight`."""
        ...

    def end_generation(self) -> None:
        """Make room for what follows, where there is any to make."""
        ...

    def ready_to_train(self) -> None:
        """The update's weights are on the device for all that is computed from here on."""
        ...

    def values(self, tensor: Tensor) -> Tensor:
        """Of a live tensor of the policy, wherever they are."""
        ...
