"""Run checks one after the other, each in separate processes that are killed at its deadline.

Called by `bring_up_command`. A check that hangs or crashes has failed; the others still run.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from rljob_runtime.cli.bring_up.checks import CHECKS, FIRST, Check
from rljob_runtime.cli.bring_up.child import Task
from rljob_runtime.cli.bring_up.record import CheckOutcome, Result

GRACE_SECONDS = 5.0
"""How long other processes of a check may continue after one failed, and how long a killed one may take to
end."""
STACKS_SECONDS = 1.0
POLL_SECONDS = 0.05
OUTPUT_LINES = 40
OUTPUT_CHARACTERS = 6000
VISIBLE_DEVICES = {
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend910b": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend910c": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend950": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
}
"""Environment variables that select the devices of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BringUpMachine:
    """The machine under test. accelerator: its type, cuda, or ascend where only the driver knows the type.
    devices: number of devices for checks; None until the first check has counted them. environment: of this
    process."""

    accelerator: str
    devices: int | None
    environment: Mapping[str, str]


def bring_up(
    machine: BringUpMachine, selected: Sequence[str], *, table: Sequence[Check] = CHECKS
) -> Iterator[CheckOutcome]:
    """Yield outcomes in the order of the table as they arrive. selected: names of checks to run; the first
    check always runs."""
    for check in table:
        if check.name == FIRST:
            outcome = run_check(check, machine)
            if outcome.result is Result.PASSED:
                machine = with_devices(machine, outcome)
            yield outcome
        elif check.name not in selected:
            yield _skipped(check, "it was not asked for (--check)")
        elif machine.devices is None:
            yield _skipped(check, f"no device could be used (check {FIRST})")
        else:
            yield run_check(check, machine)


def with_devices(machine: BringUpMachine, first: CheckOutcome) -> BringUpMachine:
    """Return the machine with the accelerator and devices that its first check reported."""
    figures = first.figures
    return replace(
        machine, accelerator=str(figures["accelerator"]), devices=int(str(figures["devices"]))
    )


def run_check(check: Check, machine: BringUpMachine) -> CheckOutcome:
    """Run one check in a temporary folder. Its processes have ended when it returns."""
    started = time.monotonic()
    size = min(machine.devices or 1, check.max_processes)
    with tempfile.TemporaryDirectory(
        prefix="rljob-bring-up-", ignore_cleanup_errors=True
    ) as folder:
        processes = [_Process(check, machine, rank, size, Path(folder)) for rank in range(size)]
        try:
            timed_out = _wait_for_end(processes, started + check.seconds)
            outcome = _outcome_of(check, processes, timed_out=timed_out)
        finally:
            for process in processes:
                process.end()
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - started, 2))


class _Process:
    """One process of a check, in a separate process group, and its output."""

    def __init__(
        self, check: Check, machine: BringUpMachine, rank: int, size: int, folder: Path
    ) -> None:
        self.task = Task(
            check=check.name,
            work=check.work,
            accelerator=machine.accelerator,
            rank=rank,
            size=size,
            devices=machine.devices or 1,
            folder=str(folder),
            seconds=check.seconds,
        )
        self._output = folder / f"output-{rank}"
        with self._output.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "rljob_runtime.cli.bring_up.child", self._argument],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(machine, rank, alone=check.max_processes == 1),
                process_group=0,
            )

    @property
    def _argument(self) -> str:
        return msgspec.json.encode(self.task).decode()

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended, without waiting for it."""
        return self._popen.poll() is not None

    @property
    def outcome(self) -> CheckOutcome | None:
        """Return the outcome that the process wrote; None where it wrote none."""
        with contextlib.suppress(OSError):
            return msgspec.json.decode(self.task.result_file.read_bytes(), type=CheckOutcome)
        return None

    @property
    def exit_text(self) -> str:
        """Describe how a process ended that wrote no outcome."""
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit status {code}, and said no result"

    def print_stacks(self) -> None:
        """Make the process print its stacks."""
        if not self.has_ended:
            self._popen.send_signal(signal.SIGUSR1)

    def output(self) -> str:
        """Return the last lines of the process's output, stderr included, for the message of a failure."""
        text = self._output.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-OUTPUT_LINES:])[-OUTPUT_CHARACTERS:]

    def end(self) -> None:
        """Kill the process with all its descendants, and reap it."""
        descendants: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            descendants = psutil.Process(self._popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may keep it alive
            self._popen.wait(GRACE_SECONDS)


def _wait_for_end(processes: Sequence[_Process], deadline: float) -> bool:
    """Wait until all have ended, or shortly after the first failure; return whether the deadline passed
    first."""
    failed_at: float | None = None
    while not all(process.has_ended for process in processes):
        time_s = time.monotonic()
        if time_s > deadline:
            for process in processes:
                process.print_stacks()
            time.sleep(STACKS_SECONDS)
            return True
        failed = any(process.has_ended and not _succeeded(process.outcome) for process in processes)
        if failed and failed_at is None:
            failed_at = time_s
        if failed_at is not None and time_s - failed_at > GRACE_SECONDS:
            return False
        time.sleep(POLL_SECONDS)
    return False


def _succeeded(outcome: CheckOutcome | None) -> bool:
    return outcome is not None and outcome.result is not Result.FAILED


def _outcome_of(check: Check, processes: Sequence[_Process], *, timed_out: bool) -> CheckOutcome:
    """Return the check's outcome: that of the first failed process, else that of the first process."""
    for process in processes:
        outcome = process.outcome
        if outcome is None and (process.has_ended or timed_out):
            error = process.exit_text if process.has_ended else f"no end within {check.seconds:g} s"
            outcome = CheckOutcome(check=check.name, result=Result.FAILED, error=error)
        if outcome is not None and outcome.result is Result.FAILED:
            prefix = (
                f"process {process.task.rank} of {len(processes)}: " if len(processes) > 1 else ""
            )
            return msgspec.structs.replace(
                outcome, error=prefix + outcome.error, output=process.output()
            )
    first = processes[0].outcome
    assert first is not None, "processes without a result have failed"
    return first


def _environment(machine: BringUpMachine, rank: int, *, alone: bool) -> dict[str, str]:
    """Return a process' environment: one visible device where a check has several processes, else all. The
    first check of a machine counts the devices."""
    environment = dict(machine.environment)
    name = VISIBLE_DEVICES.get(machine.accelerator)
    if name is not None and not alone:
        visible = [
            device for device in re.split(r"\s*,\s*", environment.get(name, "").strip()) if device
        ]
        environment[name] = visible[rank] if rank < len(visible) else str(rank)
    return environment


def _skipped(check: Check, why: str) -> CheckOutcome:
    return CheckOutcome(check=check.name, result=Result.SKIPPED, error=why)
