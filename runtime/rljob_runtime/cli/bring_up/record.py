"""What a bring-up found, and the file that keeps it: sent back by users, read by `judgement`."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from rljob_runtime.errors import ConfigError

FORMAT = 1

Figure = float | int | str | list[str]
Figures = Mapping[str, Figure]


class Result(StrEnum):
    """Of a check. NOT_APPLICABLE: the machine lacks what it is about; SKIPPED: it could not begin, or nobody
    asked for it."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One check. error: the first, in a sentence; of one that did not begin, why. output: the last lines that
    a failed one printed."""

    check: str
    result: Result
    seconds: float = 0.0
    figures: Figures = {}
    error: str = ""
    output: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Of one bring-up. accelerator: `spec.accelerator.type`, or cuda. time: when it began, UTC. versions: by
    package or part; devices: names, as their driver says."""

    format: int
    accelerator: str
    passed: bool
    time: str
    seconds: float
    versions: dict[str, str]
    devices: list[str]
    checks: list[Outcome]

    def result(self, check: str) -> Result:
        """Of a check, SKIPPED of one that is not there."""
        return next((one.result for one in self.checks if one.check == check), Result.SKIPPED)


def all_passed(outcomes: list[Outcome]) -> bool:
    """Whether each check has passed that applies."""
    return all(one.result in (Result.PASSED, Result.NOT_APPLICABLE) for one in outcomes)


def write_record(record: Record, file: Path) -> None:
    """As JSON. Raises ConfigError where it cannot be written."""
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}; name another --out"
        ) from error


def read_record(file: Path) -> Record | None:
    """The record of a file, None where there is no file. Raises ConfigError for one that is no record."""
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
