"""What a check says: one line, and a remedy where there is something to do."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check ended. SKIPPED: it could not look, or had nothing to look at; the text says why."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. check: name of what was checked. remedy: "" where nothing is to be done."""

    check: str
    status: Status
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check=check, status=Status.OK, text=text)


def warn(check: str, text: str, remedy: str) -> Finding:
    """A job may run all the same."""
    return Finding(check=check, status=Status.WARN, text=text, remedy=remedy)


def fail(check: str, text: str, remedy: str) -> Finding:
    """No job runs, or not this one."""
    return Finding(check=check, status=Status.FAIL, text=text, remedy=remedy)


def skipped(check: str, why: str) -> Finding:
    """Nothing was looked at."""
    return Finding(check=check, status=Status.SKIPPED, text=why)
