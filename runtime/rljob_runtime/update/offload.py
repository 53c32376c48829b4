"""An optimizer whose state lies on the host but for its step (`spec.update.offload: optimizer`).

Made by the update engine around whichever optimizer it has. Passes and generation then have the state's room
on the device; each step moves it in and out again, once each.
"""

from collections.abc import Mapping

from torch import Tensor

from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.optimizers import StepOptimizer
from rljob_runtime.update.state_places import StateRange
from rljob_runtime.update.step_gradients import StepGradients


class OffloadedOptimizer:
    """A `StepOptimizer` with the steps of another, bit for bit. Raises DeviceMemoryError in `step`, with
    nothing applied, when the state has no room."""

    def __init__(self, optimizer: StepOptimizer, swap: HostSwap, ledger: MemoryLedger) -> None:
        self._optimizer, self._ledger = optimizer, ledger
        # A count of steps is a number, and stays.
        self._moved = {n: t for n, t in optimizer.state_dict().items() if t.ndim > 0}
        self._swapped = swap.out(self._moved.values())
        self._swapped.release()

    def begin(self) -> StepGradients:
        """Gradients are on the device."""
        return self._optimizer.begin()

    def step(self, learning_rate: float) -> None:
        """The state's bytes come, and go."""
        self._back()
        self._optimizer.step(learning_rate)
        self._out()

    def state_dict(self) -> dict[str, Tensor]:
        """On the host, where it is."""
        held = {name: self._swapped.host_view(tensor) for name, tensor in self._moved.items()}
        return self._optimizer.state_dict() | held

    def ranges(self) -> dict[str, StateRange]:
        """The other's."""
        return self._optimizer.ranges()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """As the other's."""
        self._back()
        try:
            self._optimizer.load_state_dict(state)
        finally:
            self._out()

    def _back(self) -> None:
        self._ledger.require(MemoryKind.OPTIMIZER, self._swapped.num_bytes)
        self._swapped.back()
        self._swapped.ready()
        self._ledger.track(MemoryKind.OPTIMIZER, self._moved.values())

    def _out(self) -> None:
        self._swapped.again()
        self._swapped.release()
