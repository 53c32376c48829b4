"""AdamW for ranks that share a model: gradients over the group of each parameter, one norm, ZeRO 0 to 3.

The update engine creates it. Parameters whose gradients are summed over the same ranks share buckets; with
ZeRO 3 they arrive as rows whose gradients are already summed over data × context ranks.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.spec.engines import Optimizer
from rljob_runtime.devices.collectives import size_of, sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import CheckpointError
from rljob_runtime.parallel.fully_sharded import (
    first_row,
    local_rows,
    take_gradients,
    weight_shards,
)
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.update.adamw import AdamW
from rljob_runtime.update.buckets import plan_buckets
from rljob_runtime.update.gradients import (
    GradientShards,
    ScatteredGradients,
    WholeGradients,
    clip_gradients,
)
from rljob_runtime.update.optimizers import tracked_adamw
from rljob_runtime.update.state_places import StateRange, adamw_ranges
from rljob_runtime.update.zero import ShardedAdamW

OVER_STAGES = (Purpose.TIED_GRADIENTS, Purpose.TOWER_GRADIENTS)


class ParallelOptimizer:
    """A `StepOptimizer` of a rank's shard of a model.

    purposes: of each parameter, by name. everyone: all ranks of the update layout, None for one. The ZeRO
    stage is the layout's. Raises DeviceMemoryError if the moments do not fit.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        purposes: Mapping[str, Purpose],
        settings: Optimizer,
        *,
        groups: ProcessGroups,
        everyone: ProcessGroup | None,
        ledger: MemoryLedger,
    ) -> None:
        self._everyone = everyone
        by_purpose = {
            purpose: {name: parameters[name] for name in parameters if purposes[name] is purpose}
            for purpose in Purpose
        }
        rows = groups.grid.degrees.zero == 3 and groups[Purpose.CUT_GRADIENTS] is not None
        self._shares = [
            (_Rows if rows and purpose is not Purpose.TOWER_GRADIENTS else _Share)(
                members, purpose, settings, groups=groups, ledger=ledger
            )
            for purpose, members in by_purpose.items()
            if members
        ]

    def begin(self) -> "ParallelGradients":
        """Create the gradient buckets of each purpose."""
        for share in self._shares:
            share.begin()
        return ParallelGradients(self._shares, self._everyone)

    def step(self, learning_rate: float) -> None:
        """Apply the gradients; with ZeRO, each rank steps its shard and gathers the others'."""
        for share in self._shares:
            share.step(learning_rate)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by purpose and name."""
        return {
            f"{share.purpose}.{name}": tensor
            for share in self._shares
            for name, tensor in share.adamw.state_dict().items()
        }

    def ranges(self) -> dict[str, StateRange]:
        """Return the ranges under the names of `state_dict`."""
        return {
            f"{share.purpose}.{name}": state_range
            for share in self._shares
            for name, state_range in adamw_ranges(share.adamw.state_dict(), share.first).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a state of the same rank of the same layout. Raises CheckpointError if it does not fit."""
        live = self.state_dict()
        wrong = sorted(n for n in state if n not in live or live[n].shape != state[n].shape)
        if wrong or len(live) != len(state):
            missing = sorted(live.keys() - state.keys())
            raise CheckpointError(
                f"the optimizer's state is not of this rank's part of the model: unknown or of another "
                f"shape {wrong}, missing {missing}; resume with the degrees that it was saved with"
            )
        for name, tensor in live.items():
            tensor.copy_(state[name])


class ParallelGradients:
    """A `StepGradients` of a rank's shard of a model."""

    def __init__(self, shares: Sequence["_Share | _Rows"], everyone: ProcessGroup | None) -> None:
        self._shares, self._everyone = shares, everyone

    def end_pass(self) -> None:
        """End a backward pass; with ZeRO 2, all ranks of a parameter's group run equally many."""
        for share in self._shares:
            share.end_pass()

    def divide(self, by: float) -> None:
        """Divide all gradients by a number."""
        for tensor in self._local():
            tensor.div_(by)

    def norm(self) -> float:
        """Return the norm of this rank's shard of the model for its own tokens; with ZeRO 2, of its shard of
        the sums."""
        norms = [torch.linalg.vector_norm(tensor) for tensor in self._local()]
        return math.sqrt(sum(float(norm) ** 2 for norm in norms))

    def sum_over_ranks(self) -> None:
        """Sum the gradients: the bytes of a sum, or half of one with ZeRO."""
        for share in self._shares:
            share.sum_over_ranks()

    def clip(self, limit: float) -> float:
        """Clip by the norm of the full model, which is the same on all ranks."""
        return clip_gradients([share.shards for share in self._shares], limit, self._everyone)

    def free(self) -> None:
        """Drop the gradient buckets of all shares."""
        for share in self._shares:
            share.free()
        self._shares = []

    def _local(self) -> list[Tensor]:
        return [tensor for share in self._shares for tensor in share.local()]


class _Share:
    """Parameters with one group. shards: this rank's shard of the summed gradients."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        purpose: Purpose,
        settings: Optimizer,
        *,
        groups: ProcessGroups,
        ledger: MemoryLedger,
    ) -> None:
        self.purpose, self.shards = purpose, GradientShards([])
        self._parameters, self._group, self._ledger = parameters, groups[purpose], ledger
        degrees = groups.grid.degrees
        self._zero = min(degrees.zero, 2)
        # The stages of a pipeline would wait for each other after each micro-batch.
        over_stages = purpose in OVER_STAGES and degrees.pipeline > 1
        self._scatters = self._zero == 2 and not over_stages
        ranks = len(groups.grid.group(purpose, groups.rank))
        sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self._buckets = plan_buckets(sizes, ranks)
        self.adamw: AdamW | ShardedAdamW = (
            ShardedAdamW(parameters, self._buckets, settings, group=self._group, ledger=ledger)
            if self._zero
            else tracked_adamw(parameters, settings, ledger)
        )
        self._gradients: WholeGradients | ScatteredGradients | None = None

    @property
    def first(self) -> dict[str, int]:
        """Return the first item of each parameter in this rank's moments; 0 for those without an entry."""
        return self.adamw.first if isinstance(self.adamw, ShardedAdamW) else {}

    def begin(self) -> None:
        """Allocate the gradient buckets of a step. Raises DeviceMemoryError if they do not fit."""
        self.free()
        kind = ScatteredGradients if self._scatters else WholeGradients
        self._gradients = kind(self._parameters, self._buckets, self._group, self._ledger)

    def end_pass(self) -> None:
        """End a backward pass: with ZeRO 2 its gradients are summed into the shards, otherwise nothing
        happens."""
        if isinstance(self._gradients, ScatteredGradients):
            self._gradients.end_pass()

    def local(self) -> list[Tensor]:
        """Return the gradients before the sum; with ZeRO 2 they are already summed."""
        if isinstance(self._gradients, ScatteredGradients):
            return self._gradients.shards.tensors
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def sum_over_ranks(self) -> None:
        """Set `shards` to the gradients summed over the group: with ZeRO this rank's shard, otherwise all
        of them."""
        assert self._gradients is not None, "begin() makes the gradients"
        if isinstance(self._gradients, ScatteredGradients):
            self.shards = self._gradients.shards
        elif self._zero:
            self.shards = self._gradients.scatter()
        else:
            self.shards = self._gradients.sum_over_ranks()

    def step(self, learning_rate: float) -> None:
        """Apply the summed gradients with AdamW; with ZeRO, also gather the weights that other ranks step."""
        if isinstance(self.adamw, ShardedAdamW):
            self.adamw.step(self.shards, learning_rate)
        else:
            self.adamw.step(learning_rate)

    def free(self) -> None:
        """Drop the gradient buckets and the shards; without buckets, do nothing."""
        if self._gradients is not None:
            self._gradients.free()
            self._gradients, self.shards = None, GradientShards([])


class _Rows:
    """Parameters with one group, of which this rank has rows (`parallel.fully_sharded`)."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        purpose: Purpose,
        settings: Optimizer,
        *,
        groups: ProcessGroups,
        ledger: MemoryLedger,
    ) -> None:
        self.purpose, self.shards, self._parameters = purpose, GradientShards([]), parameters
        repeated = purpose is Purpose.WHOLE_GRADIENTS
        self._group = groups[Purpose.TENSOR] if repeated else None
        self._rows, self._ledger = weight_shards(parameters), ledger
        self.adamw = tracked_adamw(self._rows, settings, ledger)

    @property
    def first(self) -> dict[str, int]:
        """Return the first item of each parameter that this rank's rows contain."""
        return {
            name: first_row(parameter) * math.prod(parameter.shape[1:])
            for name, parameter in self._parameters.items()
        }

    def begin(self) -> None:
        """Drop the previous gradients and check that new ones fit. Raises DeviceMemoryError."""
        self.free()
        self._ledger.require(
            MemoryKind.GRADIENTS,
            sum(rows.untyped_storage().nbytes() for rows in self._rows.values()),
        )

    def end_pass(self) -> None:
        """Track the gradients, which are in the rows already and stay there until `free`."""
        gradients = (p.grad for p in self._parameters.values())
        self._ledger.track(
            MemoryKind.GRADIENTS, (local_rows(g) for g in gradients if g is not None)
        )

    def local(self) -> list[Tensor]:
        """Return the gradients of this rank's rows, which are already summed over data × context ranks."""
        take_gradients(self._parameters, self._rows)
        return [rows.grad for rows in self._rows.values() if rows.grad is not None]

    def sum_over_ranks(self) -> None:
        """Set `shards` to the rows' gradients; those of parameters that tensor ranks repeat are summed
        over these."""
        gradients = self.local()
        for gradient in gradients:
            sum_over_ranks(gradient.view(-1), self._group)
        self.shards = GradientShards(gradients, copies=size_of(self._group))

    def step(self, learning_rate: float) -> None:
        """Apply the summed gradients to this rank's rows; the ranks exchange nothing."""
        self.adamw.step(learning_rate)

    def free(self) -> None:
        """Drop the gradients of the parameters and of their rows."""
        for tensor in (*self._parameters.values(), *self._rows.values()):
            tensor.grad = None
        self.shards = GradientShards([])
