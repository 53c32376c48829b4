"""What a check says, and the loop over a table of checks.

A table is `name → check`: adding a check is adding a row. A check yields a line for each thing that it finds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ParamSpec, TypeVar

from rljob_runtime.cli.doctor.cluster_facts import Unseen

T = TypeVar("T")
P = ParamSpec("P")


class Status(StrEnum):
    """How a check ended. SKIPPED: it could not look, or had nothing to look at; the text says why."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. check: the row's name. remedy: "" where nothing is to be done."""

    status: Status
    text: str
    remedy: str = ""
    check: str = ""


class Skip(Exception):
    """Ends a check with a `skipped` line; the message says why."""


def findings_of(
    checks: Mapping[str, Callable[P, Iterator[Finding]]], *args: P.args, **kwargs: P.kwargs
) -> list[Finding]:
    """What all checks find, in the table's order."""
    return [
        replace(line, check=name)
        for name, check in checks.items()
        for line in _lines(check(*args, **kwargs))
    ]


def _lines(found: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from found
    except Skip as skip:
        yield skipped(str(skip))


def seen(fact: T | Unseen) -> T:
    """The fact; where it could not be looked at, the check is skipped."""
    if isinstance(fact, Unseen):
        raise Skip(fact.why)
    return fact


def ok(text: str) -> Finding:
    """All is well."""
    return Finding(status=Status.OK, text=text)


def warn(text: str, remedy: str) -> Finding:
    """A job may run all the same."""
    return Finding(status=Status.WARN, text=text, remedy=remedy)


def fail(text: str, remedy: str) -> Finding:
    """No job runs, or not this one."""
    return Finding(status=Status.FAIL, text=text, remedy=remedy)


def skipped(why: str) -> Finding:
    """Nothing was looked at."""
    return Finding(status=Status.SKIPPED, text=why)
