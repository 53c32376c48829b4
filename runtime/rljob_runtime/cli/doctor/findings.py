"""Findings of checks, and the loop over a table of checks.

A table maps names to checks: adding a check is adding a row. A check yields one finding per line of output.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ParamSpec, TypeVar

from rljob_runtime.cli.doctor.cluster_facts import UnreadableFact

T = TypeVar("T")
P = ParamSpec("P")


class Status(StrEnum):
    """Result of a check. SKIPPED: it could not run or had nothing to check; the text gives the reason."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of output. check: the row's name. remedy: "" where none is needed."""

    status: Status
    text: str
    remedy: str = ""
    check: str = ""


class Skip(Exception):
    """Ends a check with a `skipped` line; the message says why."""


def findings_of(
    checks: Mapping[str, Callable[P, Iterator[Finding]]], *args: P.args, **kwargs: P.kwargs
) -> list[Finding]:
    """Return the findings of all checks, in the table's order."""
    return [
        replace(finding, check=name)
        for name, check in checks.items()
        for finding in _with_skip(check(*args, **kwargs))
    ]


def _with_skip(findings: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except Skip as skip:
        yield skipped(str(skip))


def require(fact: T | UnreadableFact) -> T:
    """Return the fact. Raises Skip where it is unavailable."""
    if isinstance(fact, UnreadableFact):
        raise Skip(fact.why)
    return fact


def ok(text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(status=Status.OK, text=text)


def warn(text: str, remedy: str) -> Finding:
    """Return a finding with which a job may still run."""
    return Finding(status=Status.WARN, text=text, remedy=remedy)


def fail(text: str, remedy: str) -> Finding:
    """Return a finding that prevents any job, or this one, from running."""
    return Finding(status=Status.FAIL, text=text, remedy=remedy)


def skipped(why: str) -> Finding:
    """Return a finding of a check that did not run."""
    return Finding(status=Status.SKIPPED, text=why)
