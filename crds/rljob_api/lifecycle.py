"""When a job on a cluster is given up, started again, or cleaned away. Read by the operator alone."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.base import Section

Seconds = Annotated[int, Field(le=2**31 - 1)]
CleanupPolicy = Literal["DeleteWorkers", "DeleteCluster", "Retain"]


class FailureRule(Section):
    """What follows a failure with one of these exit codes and reasons.

    A rule matches when every list that it gives names the failure; the first rule that matches
    decides.
    """

    action: Literal["FailJob", "Restart", "Ignore"]
    """`FailJob` ends the job, `Restart` starts it again and counts against backoffLimit, `Ignore`
    starts it again without counting."""

    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(
        default_factory=list, max_length=64
    )
    """Exit codes of the run, e.g. 2 for a job that it refused."""

    on_reasons: list[
        Annotated[
            str,
            Field(min_length=1, max_length=256, pattern=r"^[A-Za-z]([A-Za-z0-9]*[A-Za-z0-9])?$"),
        ]
    ] = Field(default_factory=list, max_length=64)
    """Reasons as in status.failures, e.g. OOMKilled or HeadLost."""


class FailurePolicy(Section):
    """Failures that are not simply counted against backoffLimit."""

    rules: list[FailureRule] = Field(
        min_length=1, max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """The first rule that matches decides; a failure that none matches is started again and
    counted."""
