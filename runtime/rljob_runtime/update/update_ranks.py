"""Process groups of the update layout, as seen by one of its ranks.

`build` creates them where the ranks meet; the engine and the states take their groups from here.
"""

from dataclasses import dataclass

from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRanks:
    """One rank's process groups.

    everyone: all ranks that train; None for one. groups: those of each purpose; None if every rank holds the
    full model and trains on different samples. passes_meet: a forward or backward pass of one replica waits
    for one of another.
    """

    everyone: ProcessGroup | None = None
    groups: ProcessGroups | None = None
    passes_meet: bool = False

    @classmethod
    def of(cls, groups: ProcessGroups, everyone: ProcessGroup | None) -> "UpdateRanks":
        """Create the groups of ranks that share models."""
        return cls(everyone=everyone, groups=groups, passes_meet=_passes_meet(groups.grid))

    @property
    def data(self) -> ProcessGroup | None:
        """Return the ranks that compute the same shard of the model for other samples.

        Counts of one replica are summed over them.
        """
        return self.groups[Purpose.DATA] if self.groups else self.everyone

    @property
    def replica(self) -> ProcessGroup | None:
        """Return the ranks that train on the same samples."""
        return self.groups[Purpose.REPLICA] if self.groups else None

    @property
    def in_stages(self) -> bool:
        """Return whether ranks have different layers of a model, so that their work is unequal."""
        return self.groups is not None and self.groups[Purpose.PIPELINE] is not None

    @property
    def share(self) -> tuple[int, int]:
        """Return (this replica's number, number of replicas), which selects the samples that this rank trains
        on."""
        return rank_of(self.data), size_of(self.data)

    @property
    def leads(self) -> bool:
        """Return whether this rank accesses the dock for its replica."""
        return rank_of(self.replica) == 0

    @property
    def pass_group(self) -> ProcessGroup | None:
        """Return the ranks that wait for each other in a pass, so that none may continue alone."""
        return self.everyone if self.passes_meet else self.replica


def _passes_meet(grid: RankGrid) -> bool:
    """Return whether replicas share experts or weights, or scatter gradients in each pass."""
    over_data = any(
        len({grid.coordinates(rank).data for rank in group}) > 1
        for group in grid.groups(Purpose.EXPERT)
    )
    return over_data or (grid.degrees.zero >= 2 and grid.degrees.data != 1)
