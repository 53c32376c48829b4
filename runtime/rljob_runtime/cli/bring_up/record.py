"""The outcome of a bring-up and its file, which users send back and `judgement` reads."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from rljob_runtime.errors import ConfigError

FORMAT = 1

Figure = float | int | str | list[str]
Figures = Mapping[str, Figure]


class Result(StrEnum):
    """Result of a check. NOT_APPLICABLE: the machine lacks what it tests. SKIPPED: it could not begin or was
    not requested."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"


class CheckOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one check. error: the first error in a sentence, or why the check did not begin. output: the
    last lines that a failed check printed."""

    check: str
    result: Result
    seconds: float = 0.0
    figures: Figures = {}
    error: str = ""
    output: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Record of one bring-up. accelerator: `spec.accelerator.type`, or cuda. time: its start, UTC. versions:
    by package or component. devices: names that their driver reports."""

    format: int
    accelerator: str
    passed: bool
    time: str
    seconds: float
    versions: dict[str, str]
    devices: list[str]
    checks: list[CheckOutcome]

    def result(self, check: str) -> Result:
        """Return the result of a check, SKIPPED for one that is not recorded."""
        return next(
            (outcome.result for outcome in self.checks if outcome.check == check), Result.SKIPPED
        )


def all_passed(outcomes: list[CheckOutcome]) -> bool:
    """Return whether each check that applies has passed."""
    return all(outcome.result in (Result.PASSED, Result.NOT_APPLICABLE) for outcome in outcomes)


def write_record(record: Record, file: Path) -> None:
    """Write the record as JSON. Raises ConfigError where the file cannot be written."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}; name another --out"
        ) from error


def read_record(file: Path) -> Record | None:
    """Return the record of a file, None without the file. Raises ConfigError for a file that is no record."""
    try:
        record = msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{file} is no record of a bring-up: {error}; write it again: rljob doctor --bring-up"
        ) from error
    if record.format != FORMAT:
        raise ConfigError(
            f"{file} has format {record.format}, and this rljob reads {FORMAT}; write it again: "
            "rljob doctor --bring-up"
        )
    return record
