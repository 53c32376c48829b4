"""State that the simulated workers of one run share: the job, its costs, random values, the dock, and
barriers."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.simulate.costs import Costs
from rljob_runtime.simulate.dock import SimulatedClaim, SimulatedDock
from rljob_runtime.simulate.draws import BatchDraws, Draws
from rljob_runtime.simulate.virtual_clock import VirtualCall, VirtualClock

ITEM_BYTES = 4
"""Bytes of a column's value."""


@dataclass(slots=True)
class Barrier:
    """A wait of several devices for each other. left: number yet to arrive. values: of those that have
    arrived."""

    left: int
    call: VirtualCall = field(default_factory=VirtualCall)
    values: list[Any] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class SimulatedWorld:
    """The shared state of one simulated run. peak_bytes: of a device, by the planner's arithmetic."""

    job: ResolvedJob
    clock: VirtualClock
    dock: SimulatedDock
    costs: Costs
    draws: Draws
    peak_bytes: int = 0
    barriers: dict[tuple[Any, ...], Barrier] = field(default_factory=dict)

    @property
    def spec(self) -> ResolvedSpec:
        """Return the spec of the job."""
        return self.job.spec

    @property
    def streams(self) -> bool:
        """Return whether a state works on rows while others are still being created."""
        return self.spec.flow.mode != "sync"

    def sizes(self, batch: BatchName) -> tuple[int, int]:
        """Return the prompts of a batch, and the samples of each."""
        if batch.kind == "eval":
            assert self.spec.evaluation is not None, "an evaluation batch without spec.evaluation"
            held_out = self.spec.evaluation.set_of(batch.suite)
            return held_out.prompts, held_out.samples_per_prompt
        return self.spec.batch.global_batch_size, self.spec.batch.samples_per_prompt

    def draws_of(self, batch: BatchName) -> BatchDraws:
        """Return the random values of a batch."""
        groups, samples = self.sizes(batch)
        return self.draws.of(batch, groups=groups, samples=samples)

    def meet(self, key: tuple[Any, ...], size: int, value: Any = None) -> VirtualCall:
        """Return a call that ends once `size` devices have called this, with the values of all."""
        barrier = self.barriers.setdefault(key, Barrier(size))
        barrier.left -= 1
        barrier.values.append(value)
        if not barrier.left:
            del self.barriers[key]
            barrier.call.settle(barrier.values)
        return barrier.call

    def moving_seconds(self, claimed: SimulatedClaim, columns: Iterable[str]) -> float:
        """Return the seconds of reading these columns of rows from all warehouses concurrently."""
        return (
            self.moved(claimed, columns)
            / max(1, self.dock.num_warehouses)
            / self.costs.dispatch_bytes
        )

    def moved(self, claimed: SimulatedClaim, columns: Iterable[str]) -> int:
        """Return the bytes of these columns of rows, as far as their lengths are known."""
        rows = self.dock.batches.get(claimed.batch)
        num_bytes = 0
        for name in columns:
            if rows is not None and name in rows.lengths:
                num_bytes += int(rows.lengths[name][claimed.rows_n].sum()) * ITEM_BYTES
        return num_bytes
