"""Evaluate the failure of an attempt: which rule of the policy matches, and whether it counts.

Pure; used by `decide`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.lifecycle import FailurePolicy, FailureReason, FailureRule
from rljob_api.spec.status import Failure

"""The runtime has exit codes for a job that it refuses and one that a guard stopped, where a retry changes
nothing, and for one in which a deadline passed."""
KEPT_FAILURES = 10
FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS = 5.0, 300.0

Action = Literal["FailJob", "Restart", "Ignore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailure:
    """Why an attempt ended. lost: its cluster cannot be used again. disrupted: the cluster caused it
    (eviction, drain, a broken chip), not the user."""

    reason: FailureReason
    message: str
    node: str | None = None
    exit_code: int | None = None
    lost: bool = False
    disrupted: bool = False


def action_of(failure: AttemptFailure, policy: FailurePolicy | None) -> Action:
    """Return the first matching rule's action. Without one, disruptions do not count, and a job that is
    refused or that a guard stopped fails."""
    for rule in policy.rules if policy else ():
        if _matches(rule, failure):
            return rule.action
    if failure.exit_code in (ExitCode.INVALID, ExitCode.STOPPED):
        return "FailJob"
    return "Ignore" if failure.disrupted else "Restart"


def backoff_seconds(restarts: int) -> float:
    """Return the pause before an attempt after this many counted restarts: 0, 5, 10, 20 … 300."""
    if restarts == 0:
        return 0.0
    return float(min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** min(restarts - 1, 10)))


def recorded(
    failures: Sequence[Failure], failure: AttemptFailure, *, attempt: int, time: str
) -> list[Failure]:
    """Return the last failures with this one at the end."""
    new = Failure(
        attempt=attempt,
        reason=failure.reason,
        message=failure.message[:1024],
        time=time,
        node=failure.node,
        exit_code=failure.exit_code,
    )
    return [*failures, new][-KEPT_FAILURES:]


def _matches(rule: FailureRule, failure: AttemptFailure) -> bool:
    if rule.on_exit_codes and failure.exit_code not in rule.on_exit_codes:
        return False
    return not rule.on_reasons or failure.reason in rule.on_reasons
