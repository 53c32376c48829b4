"""What the update engine asks of an optimizer, and the one of ranks that hold the whole model each.

`parallel_optimizer` has that of ranks that share a model, or its optimizer.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.update.adamw import AdamW, state_bytes
from rljob_runtime.update.state_places import StateRange, adamw_ranges
from rljob_runtime.update.step_gradients import GradientBuffer, StepGradients


class StepOptimizer(Protocol):
    """AdamW over the parameters that a rank holds. All ranks call the same in the same order."""

    def begin(self) -> StepGradients:
        """Gradients are zero from here on. Raises DeviceMemoryError when they do not fit."""
        ...

    def step(self, learning_rate: float) -> None:
        """Apply the gradients that were begun last, added up and clipped."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's part of the state by name; live tensors, not copies."""
        ...

    def ranges(self) -> dict[str, StateRange]:
        """What the tensors of `state_dict` are of; empty where no other layout can take them."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` of the same rank. Raises CheckpointError if it does not fit."""
        ...


class WholeOptimizer:
    """A `StepOptimizer` of a whole model. group: ranks that hold it too, for other samples.

    Raises DeviceMemoryError when AdamW's state does not fit.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        settings: Optimizer,
        *,
        group: ProcessGroup | None,
        ledger: MemoryLedger,
    ) -> None:
        self._parameters, self._group, self._ledger = dict(parameters), group, ledger
        self._adamw = tracked_adamw(parameters, settings, ledger)

    def begin(self) -> GradientBuffer:
        """One buffer."""
        return GradientBuffer(self._parameters, self._ledger, self._group)

    def step(self, learning_rate: float) -> None:
        """The same on every rank."""
        self._adamw.step(learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        """The whole state."""
        return self._adamw.state_dict()

    def ranges(self) -> dict[str, StateRange]:
        """Of whole parameters."""
        return adamw_ranges(self._adamw.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raises CheckpointError, with nothing copied, if names or shapes differ."""
        self._adamw.load_state_dict(state)


def tracked_adamw(
    parameters: Mapping[str, Tensor], settings: Optimizer, ledger: MemoryLedger
) -> AdamW:
    """AdamW whose state is in the ledger. Raises DeviceMemoryError when they do not fit."""
    ledger.require(MemoryKind.OPTIMIZER, state_bytes(parameters, settings))
    adamw = AdamW(parameters, settings)
    ledger.track(MemoryKind.OPTIMIZER, adamw.state_dict().values())
    return adamw
