"""The optimizer interface of the update engine, and the optimizer of ranks that each hold the full model.

`parallel_optimizer` has the one for ranks that share a model or its optimizer.
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
    """AdamW over a rank's local parameters. All ranks call the same methods in the same order."""

    def begin(self) -> StepGradients:
        """Start a step with zero gradients. Raises DeviceMemoryError if they do not fit."""
        ...

    def step(self, learning_rate: float) -> None:
        """Apply the gradients of the last `begin`, which are summed and clipped."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Return this rank's shard of the state by name; live tensors, not copies."""
        ...

    def ranges(self) -> dict[str, StateRange]:
        """Return which parameters the tensors of `state_dict` belong to; empty if no other layout can load
        them."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a `state_dict` of the same rank. Raises CheckpointError if it does not fit."""
        ...


class WholeOptimizer:
    """A `StepOptimizer` of a full model. group: ranks that hold it too, for other samples.

    Raises DeviceMemoryError if AdamW's state does not fit.
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
        """Create one buffer for all gradients."""
        return GradientBuffer(self._parameters, self._ledger, self._group)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients, with the same result on every rank."""
        self._adamw.step(learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the full optimizer state."""
        return self._adamw.state_dict()

    def ranges(self) -> dict[str, StateRange]:
        """Return the ranges of full parameters."""
        return adamw_ranges(self._adamw.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Raise CheckpointError, with nothing copied, if names or shapes differ."""
        self._adamw.load_state_dict(state)


def tracked_adamw(
    parameters: Mapping[str, Tensor], settings: Optimizer, ledger: MemoryLedger
) -> AdamW:
    """Create AdamW whose state is in the ledger. Raises DeviceMemoryError if it does not fit."""
    ledger.require(MemoryKind.OPTIMIZER, state_bytes(parameters, settings))
    adamw = AdamW(parameters, settings)
    ledger.track(MemoryKind.OPTIMIZER, adamw.state_dict().values())
    return adamw
