"""`rljob doctor --bring-up`: run the checks, print each outcome, and write the record."""

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.bring_up.checks import CHECKS, FIRST, NAMES
from rljob_runtime.cli.bring_up.course import BringUpMachine, bring_up
from rljob_runtime.cli.bring_up.record import (
    FORMAT,
    CheckOutcome,
    Figure,
    Figures,
    Record,
    Result,
    all_passed,
    write_record,
)
from rljob_runtime.cli.bring_up.versions import installed_versions
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
    *, accelerator: str | None, check_names: list[str], out: Path, as_json: bool
) -> ExitCode:
    """Run all checks or the named ones; return DONE if all that apply passed. Raises ConfigError for unknown
    names, and where the record cannot be written."""
    _check_names([accelerator] if accelerator else [], ACCELERATORS, "--accelerator")
    _check_names(check_names, NAMES, "--check")
    accelerator = accelerator or visible_type()
    console = None if as_json else console_of()
    start_time, started = datetime.now(UTC), time.monotonic()
    machine = BringUpMachine(accelerator=accelerator, devices=None, environment=os.environ)
    outcomes = list(_with_progress(bring_up(machine, check_names or NAMES), console))
    device_figures = next(outcome for outcome in outcomes if outcome.check == FIRST).figures
    names = device_figures.get("names", [])
    record = Record(
        format=FORMAT,
        accelerator=str(device_figures.get("accelerator", accelerator)),
        passed=all_passed(outcomes),
        time=start_time.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - started, 1),
        versions=installed_versions(),
        devices=names if isinstance(names, list) else [str(names)],
        checks=outcomes,
    )
    write_record(record, out)
    if console is None:
        print_text(msgspec.json.format(msgspec.json.encode(record), indent=2).decode())
    else:
        _print_summary(record, out, console)
    return ExitCode.DONE if record.passed else ExitCode.FAILED


def visible_type(devices: Path = DEVICES) -> str:
    """Return the accelerator type of this machine's device files: `ascend` for NPUs, whose exact type their
    driver reports. Those of the emulated device plugin are /dev/null and do not count."""
    null_device = (devices / "null").stat().st_rdev
    if any(file.stat().st_rdev != null_device for file in devices.glob("davinci[0-9]*")):
        return "ascend"
    return "cuda" if any(devices.glob("nvidia[0-9]*")) else "emulated"


def _check_names(names: list[str], legal: tuple[str, ...], option: str) -> None:
    for name in names:
        if name not in legal:
            raise ConfigError(f"{option} is {name!r}; use one of {', '.join(legal)}")


def _with_progress(
    outcomes: Iterator[CheckOutcome], console: "Console | None"
) -> Iterator[CheckOutcome]:
    """Yield the outcomes; show the running check, and print each outcome when it arrives."""
    for check in CHECKS:
        if console is None:
            yield next(outcomes)
            continue
        with console.status(f"{check.name}: {check.summary} (at most {check.seconds:g} s)"):
            outcome = next(outcomes)
        _print_outcome(outcome, console)
        yield outcome


def _print_outcome(outcome: CheckOutcome, console: "Console") -> None:
    from rich.text import Text

    line = Text(f"{outcome.check:<14}")
    line.append(f"{outcome.result:<15}", STYLES[outcome.result])
    line.append(f"{outcome.seconds:6.1f} s  " if outcome.seconds else " " * 10)
    line.append(outcome.error or ", ".join(_format_figures(outcome.figures)[:SHOWN_FIGURES]))
    console.print(line)


def _format_figures(figures: Figures) -> list[str]:
    return [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {_format_figure(value)}"
        for name, value in figures.items()
    ]


def _format_figure(value: Figure) -> str:
    """Format a figure; equal names of a list are printed once."""
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(value))
    return str(value)


def _print_summary(record: Record, out: Path, console: "Console") -> None:
    failed = [outcome.check for outcome in record.checks if outcome.result is Result.FAILED]
    skipped = [outcome.check for outcome in record.checks if outcome.result is Result.SKIPPED]
    if record.passed:
        text = f"passed on {record.accelerator} in {record.seconds:.0f} s"
    else:
        reason = ", ".join(failed) or f"{len(skipped)} checks did not run"
        text = f"did not pass on {record.accelerator}: {reason}"
    console.print(f"{text}; {out} has versions, figures and first errors")
