"""Reports failed rewards: each as an event, and a fully failed evaluation as an error. Called by the
driver."""

from collections.abc import Sequence
from typing import Any

from rljob_runtime.errors import RewardError
from rljob_runtime.record.event_types import RewardErrorEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.samples.batches import BatchName


def write_reward_errors(log: EventLog, batch: BatchName, reward_reports: Sequence[Any]) -> None:
    """Write an event per failed reward. Raise RewardError if no sample of an evaluation was scored.

    For a step, the guard rewardErrors decides how the run continues.
    """
    for report in reward_reports:
        for name, count in report.errors.items():
            message = report.first_error
            log.write(RewardErrorEvent(step=batch.step, reward=name, message=message, count=count))
    scored = sum(len(report.totals) + report.excluded for report in reward_reports)
    failed = sum(report.failed for report in reward_reports)
    if batch.kind == "eval" and scored and failed == scored:
        first = next(report.first_error for report in reward_reports if report.first_error)
        raise RewardError(
            f"all {scored} samples of {batch} failed in a reward (spec.rewards); the first error "
            f"was: {first}"
        )
