"""What the simulated workers of one run share: its job, what takes how long, chance, the dock, and who waits
for whom."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rljob_api.topology.resolved import ResolvedJob, ResolvedSpec
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.simulate.costs import Costs
from rljob_runtime.simulate.dock import Claimed, SimulatedDock
from rljob_runtime.simulate.draws import Drawn, Draws
from rljob_runtime.simulate.virtual_clock import VirtualCall, VirtualClock

ITEM_BYTES = 4
"""Of a column's value."""


@dataclass(slots=True)
class Meeting:
    """Devices wait for each other. left: to come. values: of those that have."""

    left: int
    call: VirtualCall = field(default_factory=VirtualCall)
    values: list[Any] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class World:
    """peaks: bytes of a device, as the planner counts them."""

    job: ResolvedJob
    clock: VirtualClock
    dock: SimulatedDock
    costs: Costs
    draws: Draws
    peak_bytes: int = 0
    meetings: dict[tuple[Any, ...], Meeting] = field(default_factory=dict)

    @property
    def spec(self) -> ResolvedSpec:
        """Of the job."""
        return self.job.spec

    @property
    def streams(self) -> bool:
        """Whether a state works on rows while others are still made."""
        return self.spec.flow.mode != "sync"

    def sizes(self, batch: BatchName) -> tuple[int, int]:
        """Prompts of a batch, and samples of each."""
        if batch.kind == "eval":
            assert self.spec.evaluation is not None, "an evaluation batch without spec.evaluation"
            held_out = self.spec.evaluation.set_of(batch.suite)
            return held_out.prompts, held_out.samples_per_prompt
        return self.spec.batch.global_batch_size, self.spec.batch.samples_per_prompt

    def drawn(self, batch: BatchName) -> Drawn:
        """What chance says of a batch."""
        groups, samples = self.sizes(batch)
        return self.draws.of(batch, groups=groups, samples=samples)

    def meet(self, key: tuple[Any, ...], size: int, value: Any = None) -> VirtualCall:
        """Ends once `size` devices have come, with what each of them brought."""
        meeting = self.meetings.setdefault(key, Meeting(size))
        meeting.left -= 1
        meeting.values.append(value)
        if not meeting.left:
            del self.meetings[key]
            meeting.call.settle(meeting.values)
        return meeting.call

    def moving_seconds(self, claimed: Claimed, columns: Iterable[str]) -> float:
        """Of reading these columns of rows from their warehouses, all at the same time."""
        return (
            self.moved(claimed, columns)
            / max(1, self.dock.num_warehouses)
            / self.costs.dispatch_bytes
        )

    def moved(self, claimed: Claimed, columns: Iterable[str]) -> int:
        """Bytes of these columns of rows, as far as their lengths are known."""
        rows = self.dock.batches.get(claimed.batch)
        found = 0
        for name in columns:
            if rows is not None and name in rows.lengths:
                found += int(rows.lengths[name][claimed.rows_n].sum()) * ITEM_BYTES
        return found
