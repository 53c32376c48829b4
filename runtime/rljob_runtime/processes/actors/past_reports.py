"""What a worker reported of the last batches, for a driver that comes after the one that asked.

A driver that was killed takes what it was told along. Kept by device and reward workers; asked by
`run.succession`.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from rljob_api.topology.devices import most_ahead
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.errors import WorkerError
from rljob_runtime.samples.batches import BatchName

Report = TypeVar("Report")


@dataclass(slots=True, kw_only=True)
class PastReports:
    """steps: that are kept, from the one that was reported last on: batches may be on their way so far ahead
    of the one that is trained on."""

    steps: int
    kept: dict[tuple[str, BatchName], object] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "PastReports":
        """Of a worker of this job."""
        return cls(steps=most_ahead(spec) + 2)

    def keep(self, stage: str, batch: BatchName, report: Report) -> Report:
        """The report, which `get` returns as well."""
        recent = batch.step - self.steps
        self.kept = {key: old for key, old in self.kept.items() if key[1].step > recent}
        self.kept[stage, batch] = report
        return report

    def get(self, stage: str, batch: BatchName) -> object:
        """Raises WorkerError where nothing was reported of it."""
        if (stage, batch) not in self.kept:
            raise WorkerError(f"{batch} has no report of {stage} here")
        return self.kept[stage, batch]
