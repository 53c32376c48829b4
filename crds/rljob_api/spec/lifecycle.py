"""When a job on a cluster fails, is restarted, or is cleaned up. Read only by the operator."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.section import Section

Seconds = Annotated[int, Field(le=2**31 - 1)]
CleanupPolicy = Literal["DeleteWorkers", "DeleteCluster", "Retain"]

FailureReason = Literal[
    "DriverFailed", "WorkerKilled", "Stopped", "GuardStopped", "Hung", "NoProgress", "HeadLost", "NodeLost",
    "ClusterLost",
]  # fmt: skip
"""Why an attempt ended, as the operator reports it in status.failures."""


class FailureRule(Section):
    """What follows a failure with one of these exit codes and reasons.

    A rule matches if every list that it has names the failure; the first rule that matches decides.
    """

    action: Literal["FailJob", "Restart", "Ignore"]
    """`FailJob` ends the job, `Restart` starts it again and counts against backoffLimit, `Ignore`
    starts it again without counting."""

    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default_factory=list, max_length=64
    )
    """Exit codes of the run, e.g. 2 for a job that it refused."""

    on_reasons: list[FailureReason] = Field(default_factory=list, max_length=64)
    """Reasons as in status.failures. The run ended: DriverFailed; a container of a worker was killed, e.g.
    for memory: WorkerKilled; Ray was asked to stop it: Stopped; a guard stopped it: GuardStopped; one of its
    deadlines passed: Hung; progressDeadlineSeconds passed: NoProgress. Lost were the head's pod or container:
    HeadLost; a node: NodeLost; the RayCluster: ClusterLost."""


class FailurePolicy(Section):
    """Failures that are not simply counted against backoffLimit."""

    rules: list[FailureRule] = Field(
        min_length=1, max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The first rule that matches decides. Where none does: a job that the run refused (exit code 2) or a
    guard stopped (4) fails; a lost node, or a head that was evicted or drained, is `Ignore`; everything else
    is `Restart`."""
