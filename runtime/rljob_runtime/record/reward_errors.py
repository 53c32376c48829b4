"""Rewards that failed: each as an event, and all of an evaluation as the run's end. Called by the driver."""

from collections.abc import Sequence
from typing import Any

from rljob_runtime.errors import RewardError
from rljob_runtime.record.event_types import RewardErrorEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.samples.batches import BatchName


def tell_reward_errors(log: EventLog, batch: BatchName, rewarded: Sequence[Any]) -> None:
    """Write what failed; raise RewardError when no sample of an evaluation could be scored. Of a step, the
    guard rewardErrors says what follows."""
    for report in rewarded:
        for name, count in report.errors.items():
            message = report.first_error
            log.write(RewardErrorEvent(step=batch.step, reward=name, message=message, count=count))
    scored = sum(len(report.totals) + report.excluded for report in rewarded)
    failed = sum(report.failed for report in rewarded)
    if batch.kind == "eval" and scored and failed == scored:
        first = next(report.first_error for report in rewarded if report.first_error)
        raise RewardError(
            f"all {scored} samples of {batch} failed in a reward (spec.rewards); the first error "
            f"was: {first}"
        )
