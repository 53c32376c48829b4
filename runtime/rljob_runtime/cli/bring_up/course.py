"""Runs checks one after the other, each in processes of its own that are killed at its deadline.

Called by `bring_up_command`. Whatever a check does, hangs or crashes, is its result; others go on.
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
from rljob_runtime.cli.bring_up.record import Outcome, Result

GRACE_SECONDS = 5.0
"""How long other processes of a check go on once one has failed, and all may still be there once killed."""
STACKS_SECONDS = 1.0
LOOK_SECONDS = 0.05
OUTPUT_LINES = 40
OUTPUT_CHARACTERS = 6000
VISIBLE = {
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend910b": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend910c": "ASCEND_RT_VISIBLE_DEVICES",
    "ascend950": "ASCEND_RT_VISIBLE_DEVICES",
    "cuda": "CUDA_VISIBLE_DEVICES",
}
"""Variables that say which devices a process has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """accelerator: its type, cuda, or ascend where only its driver knows which. devices: that checks use;
    None until the first one has counted them. environment: of this process."""

    accelerator: str
    devices: int | None
    environment: Mapping[str, str]


def bring_up(
    machine: Machine, asked: Sequence[str], *, table: Sequence[Check] = CHECKS
) -> Iterator[Outcome]:
    """Outcomes in the order of the table, each as it is there. asked: names of checks; of the others, the
    first alone runs."""
    for check in table:
        if check.name == FIRST:
            outcome = run_check(check, machine)
            if outcome.result is Result.PASSED:
                machine = counted(machine, outcome)
            yield outcome
        elif check.name not in asked:
            yield _skipped(check, "it was not asked for (--check)")
        elif machine.devices is None:
            yield _skipped(check, f"no device could be used (check {FIRST})")
        else:
            yield run_check(check, machine)


def counted(machine: Machine, first: Outcome) -> Machine:
    """The machine, with what its first check has seen."""
    found = first.figures
    return replace(
        machine, accelerator=str(found["accelerator"]), devices=int(str(found["devices"]))
    )


def run_check(check: Check, machine: Machine) -> Outcome:
    """Run one, in a folder of its own. Its processes have ended when it returns."""
    started = time.monotonic()
    size = min(machine.devices or 1, check.most)
    with tempfile.TemporaryDirectory(
        prefix="rljob-bring-up-", ignore_cleanup_errors=True
    ) as folder:
        processes = [_Process(check, machine, rank, size, Path(folder)) for rank in range(size)]
        try:
            late = _await(processes, started + check.seconds)
            outcome = _outcome(check, processes, late=late)
        finally:
            for process in processes:
                process.end()
    return msgspec.structs.replace(outcome, seconds=round(time.monotonic() - started, 2))


class _Process:
    """One process of a check, in a group of its own, and what it prints."""

    def __init__(self, check: Check, machine: Machine, rank: int, size: int, folder: Path) -> None:
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
                env=_environment(machine, rank, alone=check.most == 1),
                process_group=0,
            )

    @property
    def _argument(self) -> str:
        return msgspec.json.encode(self.task).decode()

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    @property
    def outcome(self) -> Outcome | None:
        """What it wrote; None of one that did not come to it."""
        with contextlib.suppress(OSError):
            return msgspec.json.decode(self.task.result_file.read_bytes(), type=Outcome)
        return None

    @property
    def death(self) -> str:
        """How one ended that wrote nothing."""
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit status {code}, and said no result"

    def stand(self) -> None:
        """Let it print where it stands."""
        if not self.ended:
            self._popen.send_signal(signal.SIGUSR1)

    def output(self) -> str:
        text = self._output.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-OUTPUT_LINES:])[-OUTPUT_CHARACTERS:]

    def end(self) -> None:
        """Kill it with all that it started, and reap it."""
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            below = psutil.Process(self._popen.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        for one in below:
            with contextlib.suppress(psutil.Error):
                one.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
            self._popen.wait(GRACE_SECONDS)


def _await(processes: Sequence[_Process], deadline: float) -> bool:
    """Until all have ended, or shortly after the first that failed; whether the deadline came first."""
    failed_at: float | None = None
    while not all(process.ended for process in processes):
        now = time.monotonic()
        if now > deadline:
            for process in processes:
                process.stand()
            time.sleep(STACKS_SECONDS)
            return True
        failed = any(process.ended and not _fine(process.outcome) for process in processes)
        if failed and failed_at is None:
            failed_at = now
        if failed_at is not None and now - failed_at > GRACE_SECONDS:
            return False
        time.sleep(LOOK_SECONDS)
    return False


def _fine(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.result is not Result.FAILED


def _outcome(check: Check, processes: Sequence[_Process], *, late: bool) -> Outcome:
    """Of the check: the first process that failed, else the first one's."""
    for process in processes:
        found = process.outcome
        if found is None and (process.ended or late):
            error = process.death if process.ended else f"no end within {check.seconds:g} s"
            found = Outcome(check=check.name, result=Result.FAILED, error=error)
        if found is not None and found.result is Result.FAILED:
            of = f"process {process.task.rank} of {len(processes)}: " if len(processes) > 1 else ""
            return msgspec.structs.replace(found, error=of + found.error, output=process.output())
    first = processes[0].outcome
    assert first is not None, "processes without a result have failed"
    return first


def _environment(machine: Machine, rank: int, *, alone: bool) -> dict[str, str]:
    """Of a process: with one device where there are several processes, else with all. The first check of a
    machine counts them."""
    made = dict(machine.environment)
    name = VISIBLE.get(machine.accelerator)
    if name is not None and not alone:
        given = [one for one in re.split(r"\s*,\s*", made.get(name, "").strip()) if one]
        made[name] = given[rank] if rank < len(given) else str(rank)
    return made


def _skipped(check: Check, why: str) -> Outcome:
    return Outcome(check=check.name, result=Result.SKIPPED, error=why)
