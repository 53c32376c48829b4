"""Store a worker's reports on recent batches, for a driver that takes over from the one that requested
them.

A driver that is killed loses the reports that it received. Device and reward workers store them;
`run.succession` requests them.
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
    """Recent reports by stage and batch. steps: number of steps that are stored, up to the latest
    report. Pending batches can be that far ahead of the one being trained on."""

    steps: int
    reports: dict[tuple[str, BatchName], object] = field(default_factory=dict)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "PastReports":
        """Return the store for a worker of this job."""
        return cls(steps=most_ahead(spec) + 2)

    def keep(self, stage: str, batch: BatchName, report: Report) -> Report:
        """Store the report, so that `get` returns it too, and return it."""
        recent = batch.step - self.steps
        self.reports = {
            key: past_report for key, past_report in self.reports.items() if key[1].step > recent
        }
        self.reports[stage, batch] = report
        return report

    def get(self, stage: str, batch: BatchName) -> object:
        """Return the stored report. Raises WorkerError if there is none."""
        if (stage, batch) not in self.reports:
            raise WorkerError(f"{batch} has no report of {stage} here")
        return self.reports[stage, batch]
