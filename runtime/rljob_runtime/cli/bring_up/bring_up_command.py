"""`rljob doctor --bring-up`: runs the checks, tells each as it ends, and writes the record."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.bring_up.checks import CHECKS, FIRST, NAMES
from rljob_runtime.cli.bring_up.course import Machine, bring_up
from rljob_runtime.cli.bring_up.record import (
    FORMAT,
    Figure,
    Figures,
    Outcome,
    Record,
    Result,
    all_passed,
    write_record,
)
from rljob_runtime.cli.bring_up.versions import found_versions
from rljob_runtime.cli.cluster.cluster_commands import console_of
from rljob_runtime.cli.output import print_text
from rljob_runtime.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

ACCELERATORS = ("emulated", "ascend910b", "ascend910c", "ascend950", "cuda")
STYLES = {
    Result.PASSED: "green",
    Result.FAILED: "red",
    Result.NOT_APPLICABLE: "dim",
    Result.SKIPPED: "yellow",
}
SHOWN_FIGURES = 4
DEVICES = Path("/dev")


def run_bring_up(
    *, accelerator: str | None, asked: list[str], out: Path, as_json: bool
) -> ExitCode:
    """All checks, or those that are asked for; DONE if all passed that apply. Raises ConfigError for names
    that are none, and where the record cannot be written."""
    _check_names([accelerator] if accelerator else [], ACCELERATORS, "--accelerator")
    _check_names(asked, NAMES, "--check")
    accelerator = accelerator or visible_type()
    console = None if as_json else console_of()
    began, started = datetime.now(UTC), time.monotonic()
    machine = Machine(accelerator=accelerator, devices=None, environment=os.environ)
    outcomes = list(_told(bring_up(machine, asked or NAMES), console))
    seen = next(one for one in outcomes if one.check == FIRST).figures
    names = seen.get("names", [])
    record = Record(
        format=FORMAT,
        accelerator=str(seen.get("accelerator", accelerator)),
        passed=all_passed(outcomes),
        time=began.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        versions=found_versions(),
        devices=names if isinstance(names, list) else [str(names)],
        checks=outcomes,
    )
    write_record(record, out)
    if console is None:
        print_text(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())
    else:
        _conclude(record, out, console)
    return ExitCode.DONE if record.passed else ExitCode.FAILED


def visible_type(devices: Path = DEVICES) -> str:
    """What kind of device files this machine has: `ascend` for NPUs, whose type their driver knows, but for
    those of the emulated device plugin, which are /dev/null."""
    nothing = (devices / "null").stat().st_rdev
    if any(file.stat().st_rdev != nothing for file in devices.glob("davinci[0-9]*")):
        return "ascend"
    return "cuda" if any(devices.glob("nvidia[0-9]*")) else "emulated"


def _check_names(given: list[str], legal: tuple[str, ...], option: str) -> None:
    for name in given:
        if name not in legal:
            raise ConfigError(f"{option} is {name!r}; use one of {', '.join(legal)}")


def _told(outcomes: Iterator[Outcome], console: "Console | None") -> Iterator[Outcome]:
    """The outcomes; each is told when it is there, and who is at work before."""
    for check in CHECKS:
        if console is None:
            yield next(outcomes)
            continue
        with console.status(f"{check.name}: {check.says} (at most {check.seconds:g} s)"):
            outcome = next(outcomes)
        _tell(outcome, console)
        yield outcome


def _tell(outcome: Outcome, console: "Console") -> None:
    from rich.text import Text

    line = Text(f"{outcome.check:<14}")
    line.append(f"{outcome.result:<15}", STYLES[outcome.result])
    line.append(f"{outcome.seconds:6.1f} s  " if outcome.seconds else " " * 10)
    line.append(outcome.error or ", ".join(_figures(outcome.figures)[:SHOWN_FIGURES]))
    console.print(line)


def _figures(figures: Figures) -> list[str]:
    return [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {_text(value)}"
        for name, value in figures.items()
    ]


def _text(value: Figure) -> str:
    """Of several names that are alike, one."""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(value))
    return str(value)


def _conclude(record: Record, out: Path, console: "Console") -> None:
    failed = [one.check for one in record.checks if one.result is Result.FAILED]
    skipped = [one.check for one in record.checks if one.result is Result.SKIPPED]
    if record.passed:
        text = f"passed on {record.accelerator} in {record.seconds:.0f} s"
    else:
        why = ", ".join(failed) or f"{len(skipped)} checks did not run"
        text = f"did not pass on {record.accelerator}: {why}"
    console.print(f"{text}; {out} has versions, figures and first errors")
