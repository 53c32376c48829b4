"""An optimizer whose state is on the host except during its step (`spec.update.offload: optimizer`).

The update engine wraps its optimizer in it. Passes and generation can then use the state's device memory;
each step moves the state in and out once.
"""

from collections.abc import Mapping

from torch import Tensor

from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.optimizers import StepOptimizer
from rljob_runtime.update.state_places import StateRange
from rljob_runtime.update.step_gradients import StepGradients


class OffloadedOptimizer:
    """A `StepOptimizer` with the steps of another, bit for bit.

    Raises DeviceMemoryError in `step`, with nothing applied, if the state does not fit.
    """

    def __init__(self, optimizer: StepOptimizer, swap: HostSwap, ledger: MemoryLedger) -> None:
        self._optimizer, self._ledger = optimizer, ledger
        # The step counter is a scalar and stays on the device.
        self._moved = {n: t for n, t in optimizer.state_dict().items() if t.ndim > 0}
        self._swapped = swap.out(self._moved.values())
        self._swapped.release()

    def begin(self) -> StepGradients:
        """Create zero gradients on the device."""
        return self._optimizer.begin()

    def step(self, learning_rate: float) -> None:
        """Move the state in, apply the gradients, and move the state out."""
        self._swap_in()
        self._optimizer.step(learning_rate)
        self._swap_out()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as it is on the host."""
        on_host = {name: self._swapped.host_view(tensor) for name, tensor in self._moved.items()}
        return self._optimizer.state_dict() | on_host

    def ranges(self) -> dict[str, StateRange]:
        """Return the ranges of the wrapped optimizer."""
        return self._optimizer.ranges()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state into the wrapped optimizer on the device."""
        self._swap_in()
        try:
            self._optimizer.load_state_dict(state)
        finally:
            self._swap_out()

    def _swap_in(self) -> None:
        self._ledger.require(MemoryKind.OPTIMIZER, self._swapped.num_bytes)
        self._swapped.back()
        self._swapped.ready()
        self._ledger.track(MemoryKind.OPTIMIZER, self._moved.values())

    def _swap_out(self) -> None:
        self._swapped.again()
        self._swapped.release()
