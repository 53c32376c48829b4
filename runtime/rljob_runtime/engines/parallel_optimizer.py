"""AdamW where ranks share a model: gradients over the group of each parameter, one norm, ZeRO 0 to 3.

Called by what trains a parallel model. Parameters whose gradients the same ranks add up share buckets; with
ZeRO 3 they come as rows whose gradients are sums over data × context ranks already.
"""

from collections.abc import Mapping

import torch.distributed as dist
from torch import Tensor

from rljob_api.engines import Optimizer
from rljob_runtime.backends.collectives import size_of, sum_over_ranks
from rljob_runtime.backends.ledger import MemoryKind, MemoryLedger
from rljob_runtime.engines.adamw import AdamW
from rljob_runtime.parallel.buckets import plan_buckets
from rljob_runtime.parallel.fully_sharded import take_gradients, weight_shards
from rljob_runtime.parallel.gradients import (
    GradientShards,
    ScatteredGradients,
    WholeGradients,
    clip_gradients,
)
from rljob_runtime.parallel.groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.parallel.zero import ShardedAdamW


class ParallelOptimizer:
    """All ranks of the update layout call the same methods in the same order.

    purposes: of each parameter, by name. The ZeRO stage is the layout's. Raises DeviceMemoryError when
    the moments do not fit.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        purposes: Mapping[str, Purpose],
        settings: Optimizer,
        *,
        groups: ProcessGroups,
        ledger: MemoryLedger,
    ) -> None:
        self._settings, self._world = settings, dist.group.WORLD if groups.grid.size > 1 else None
        by_purpose = {
            purpose: {name: parameters[name] for name in parameters if purposes[name] is purpose}
            for purpose in Purpose
        }
        rows = groups.grid.degrees.zero == 3 and groups[Purpose.CUT_GRADIENTS] is not None
        share = _Rows if rows else _Share
        self._shares = [
            share(held, purpose, settings, groups=groups, ledger=ledger)
            for purpose, held in by_purpose.items()
            if held
        ]

    def begin(self) -> None:
        """Gradients are zero from here on. Raises DeviceMemoryError when they do not fit."""
        for share in self._shares:
            share.begin()

    def end_pass(self) -> None:
        """A backward pass is over; all ranks run equally many."""
        for share in self._shares:
            share.end_pass()

    def step(self, learning_rate: float, *, divide_by: float = 1.0) -> float:
        """Add the gradients up over their ranks, divide, clip and apply them; returns their norm before
        clipping, which is that of the whole model."""
        kept = [share.sum() for share in self._shares]
        for shards in kept:
            shards.multiply(1 / divide_by)
        norm = clip_gradients(kept, self._settings.gradient_clip, self._world)
        for share, shards in zip(self._shares, kept, strict=True):
            share.step(shards, learning_rate)
        return norm

    def free(self) -> None:
        """Drop the gradients."""
        for share in self._shares:
            share.free()

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's part of AdamW's state, by purpose and name; live tensors, not copies."""
        return {
            f"{share.purpose}.{name}": tensor
            for share in self._shares
            for name, tensor in share.adamw.state_dict().items()
        }


class _Share:
    """Parameters with one group."""

    def __init__(
        self,
        parameters: dict[str, Tensor],
        purpose: Purpose,
        settings: Optimizer,
        *,
        groups: ProcessGroups,
        ledger: MemoryLedger,
    ) -> None:
        self.purpose = purpose
        self._parameters, self._group, self._ledger = parameters, groups[purpose], ledger
        degrees = groups.grid.degrees
        self._zero = min(degrees.zero, 2)
        # The ends of a pipeline would wait for each other after each micro-batch.
        over_stages = purpose is Purpose.TIED_GRADIENTS and degrees.pipeline > 1
        self._scatters = self._zero == 2 and not over_stages
        ranks = len(groups.grid.group(purpose, groups.rank))
        sizes = {name: parameter.numel() for name, parameter in parameters.items()}
        self._buckets = plan_buckets(sizes, ranks)
        self.adamw = (
            ShardedAdamW(parameters, self._buckets, settings, group=self._group, ledger=ledger)
            if self._zero
            else AdamW(parameters, settings)
        )
        self._gradients: WholeGradients | ScatteredGradients | None = None

    def begin(self) -> None:
        kind = ScatteredGradients if self._scatters else WholeGradients
        self._gradients = kind(self._parameters, self._buckets, self._group, self._ledger)

    def end_pass(self) -> None:
        if isinstance(self._gradients, ScatteredGradients):
            self._gradients.end_pass()

    def sum(self) -> GradientShards:
        assert self._gradients is not None, "begin() makes the gradients"
        if isinstance(self._gradients, ScatteredGradients):
            return self._gradients.shards
        return self._gradients.scatter() if self._zero else self._gradients.sum_over_ranks()

    def step(self, shards: GradientShards, learning_rate: float) -> None:
        if isinstance(self.adamw, ShardedAdamW):
            self.adamw.step(shards, learning_rate)
        else:
            self.adamw.step(learning_rate)

    def free(self) -> None:
        if self._gradients is not None:
            self._gradients.free()
            self._gradients = None


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
        self.purpose, self._parameters = purpose, parameters
        repeated = purpose is Purpose.WHOLE_GRADIENTS
        self._group = groups[Purpose.TENSOR] if repeated else None
        self._rows = weight_shards(parameters)
        ledger.track(MemoryKind.UPDATE_WEIGHTS, self._rows.values())
        ledger.require(MemoryKind.OPTIMIZER, 2 * sum(rows.nbytes for rows in self._rows.values()))
        self.adamw = AdamW(self._rows, settings)
        ledger.track(MemoryKind.OPTIMIZER, self.adamw.state_dict().values())

    def begin(self) -> None:
        self.free()

    def end_pass(self) -> None:
        """Its gradients are in the rows already."""

    def sum(self) -> GradientShards:
        take_gradients(self._parameters, self._rows)
        gradients = [rows.grad for rows in self._rows.values() if rows.grad is not None]
        for gradient in gradients:
            sum_over_ranks(gradient.view(-1), self._group)
        return GradientShards(gradients, copies=size_of(self._group))

    def step(self, shards: GradientShards, learning_rate: float) -> None:
        self.adamw.step(learning_rate)

    def free(self) -> None:
        for tensor in (*self._parameters.values(), *self._rows.values()):
            tensor.grad = None
