"""Write where every process of a run stands into `hangs/<when>-<stage>/` of its folder, within seconds.

`launch` calls it around waits with deadlines, the driver when a step starts over because of one, and users on
request. Nothing here raises into the run. The files contain no secrets: code locations, numbers and names of
rows, but no values and no environment.
"""

import contextlib
import json
import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.errors import DeadlineError, RljobError, describe, stage_of_deadline
from rljob_runtime.processes.hangs.dock_state import DockQuestion
from rljob_runtime.processes.hangs.reporter import report
from rljob_runtime.record.event_types import HangEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.hang_files import FOLDER, SUMMARY
from rljob_runtime.run.hangs.summary import process_text, summary_text
from rljob_runtime.run.hangs.switchboard import KnownProcess, Switchboard
from rljob_runtime.run.hangs.verdict import Dock, HangVerdict, judge

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
"""How long processes may take to answer: the failure of a run is delayed by as much."""
MAX_FOLDERS = 20
"""Number of folders of a run: the oldest is removed for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """A hang that was investigated. folder: None if it could not be written."""

    verdict: HangVerdict
    folder: Path | None

    @property
    def missing_text(self) -> str:
        """The processes that are missing, as text."""
        return self.verdict.reason

    @property
    def waits(self) -> str:
        """The first process that waits in a collective or for rows, and what it waits for."""
        return next(iter(self.verdict.waiting), "")

    @property
    def reason(self) -> str:
        """The processes that are missing, and where the details are written."""
        location = f"; stacks and dock: {self.folder}" if self.folder else ""
        return f"{self.missing_text}{location}"


@dataclass(slots=True, kw_only=True)
class Hangs:
    """The investigations of hangs in one run. folder: the run's. run: address by which its processes reach
    the switchboard. expected: names of the processes that should exist. dock: its address, None before it
    exists. step: number of completed steps."""

    folder: Path
    events: EventLog
    switchboard: Switchboard
    run: DockAddress
    expected: Callable[[], list[str]] = list
    dock: Callable[[], DockAddress] | None = None
    step: Callable[[], int] = int
    seconds: float = ANSWER_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: tuple[Exception, Hang] | None = None
    _raised: DeadlineError | None = None

    @contextlib.contextmanager
    def at_deadlines(self) -> Iterator[None]:
        """Investigate a deadline that passes in the body, and add the result to its error."""
        try:
            yield
        except RljobError as error:
            hang = self.investigate(error)
            if hang is None or error is self._raised:
                raise
            stage = stage_of_deadline(error)
            self._raised = DeadlineError(f"{describe(error)}; {hang.reason}", stage=stage)
            self._last = self._raised, hang
            raise self._raised from error

    def investigate(self, error: Exception) -> Hang | None:
        """Investigate the error of a deadline, once. Returns None for any other error."""
        stage = stage_of_deadline(error)
        if not stage:
            return None
        if self._last is None or self._last[0] is not error:
            self._last = error, self.dump(stage, describe(error))
        return self._last[1]

    def dump(self, stage: str, reason: str) -> Hang:
        """Ask all processes, write the folder, and report it by an event. May be called from any thread;
        never raises."""
        with self._lock:
            time_s = time.time()
            dock, processes = self._ask()
            states = _system_states(processes)
            verdict = judge(processes, self.expected(), dock, time_s=time.time(), states=states)
            title = f"{stage}: {' '.join(reason.split())}"
            texts = {
                name: process_text(process, time.time()) for name, process in processes.items()
            }
            texts["driver"] = str(report(dict)["stacks"])
            summary = summary_text(title, verdict, processes, dock, time_s=time_s, step=self.step())
            files = {f"{_file_name(name)}.txt": text for name, text in texts.items()}
            files |= {"dock.json": json.dumps(dock, indent=1, default=str), SUMMARY: summary}
            hang = Hang(verdict=verdict, folder=self._write(time_s, stage, files))
            self._write_event(stage, reason, hang)
            return hang

    def _ask(self) -> tuple[Dock, dict[str, KnownProcess]]:
        question = None
        if self.dock is not None:
            question = DockQuestion(self.dock(), seconds=self.seconds)
        processes = self.switchboard.ask(seconds=self.seconds)
        return (question.answers() if question else {}), processes

    def _write(self, time_s: float, stage: str, files: Mapping[str, str]) -> Path | None:
        """Write the folder. It gets its final name only when it is complete."""
        parent = self.folder / FOLDER
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(time_s))}-{_file_name(stage)}"
        try:
            parent.mkdir(exist_ok=True)
            while (parent / name).exists():
                name += "+"
            draft = parent / f".{name}"
            draft.mkdir()
            for file, text in files.items():
                (draft / file).write_text(text, errors="replace")
            draft.rename(parent / name)
            for old in sorted(path for path in parent.iterdir())[:-MAX_FOLDERS]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            log.warning("no stacks were written into %s: %s", parent, error)
            return None
        return parent / name

    def _write_event(self, stage: str, reason: str, hang: Hang) -> None:
        self.events.write(
            HangEvent(
                stage=stage,
                message=f"{' '.join(reason.split())}; {hang.reason}",
                folder=str(hang.folder or ""),
                step=self.step(),
                missing=hang.verdict.missing,
                waiting=hang.verdict.waiting[:32],
            )
        )


def _system_states(processes: Mapping[str, KnownProcess]) -> dict[str, str]:
    """Return the system's states of this machine's processes that do not answer, e.g. `stopped`."""
    states, host = {}, socket.gethostname()
    for name, process in processes.items():
        if process.report is None and process.gone_s is None and process.host == host:
            with contextlib.suppress(psutil.Error):
                states[name] = str(psutil.Process(process.pid).status())
    return states


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
