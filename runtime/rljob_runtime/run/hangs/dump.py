"""Writes where every process of a run stands into `hangs/<when>-<stage>/` of its folder, within seconds.

Called by `launch` around what has deadlines, by the driver where a step starts over because of one, and
on request. Nothing here raises into the run, and nothing of it is secret: places in code, numbers
and names of rows, no values, no environment.
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
from rljob_runtime.run.hangs.switchboard import Heard, Switchboard
from rljob_runtime.run.hangs.verdict import Dock, Verdict, judge

log = logging.getLogger(__name__)

ANSWER_SECONDS = 3.0
"""How long everybody is waited for: so much later a run fails for being looked at."""
KEPT = 20
"""Of a run: the oldest goes for a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What was found. folder: None where it could not be written."""

    verdict: Verdict
    folder: Path | None

    @property
    def found(self) -> str:
        """Who is missing."""
        return self.verdict.reason

    @property
    def waits(self) -> str:
        """Who waits in which collective or for which rows: the first of them."""
        return next(iter(self.verdict.waiting), "")

    @property
    def reason(self) -> str:
        """Who is missing, and where the rest is to be read."""
        place = f"; stacks and dock: {self.folder}" if self.folder else ""
        return f"{self.found}{place}"


@dataclass(slots=True, kw_only=True)
class Hangs:
    """Of one run. folder: the run's. run: what its processes are given to come to the switchboard. expected:
    names of those that should be there. dock: where it is, None before it is. step: steps that are done."""

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
        """A deadline that passes in the body is looked into, and what was found is added to its error."""
        try:
            yield
        except RljobError as error:
            hang = self.look(error)
            if hang is None or error is self._raised:
                raise
            stage = stage_of_deadline(error)
            self._raised = DeadlineError(f"{describe(error)}; {hang.reason}", stage=stage)
            self._last = self._raised, hang
            raise self._raised from error

    def look(self, error: Exception) -> Hang | None:
        """Look into a deadline's error, once; None for another one's."""
        stage = stage_of_deadline(error)
        if not stage:
            return None
        if self._last is None or self._last[0] is not error:
            self._last = error, self.dump(stage, describe(error))
        return self._last[1]

    def dump(self, stage: str, why: str) -> Hang:
        """Ask everybody, write the folder, tell it by an event. From any thread; never raises."""
        with self._lock:
            now = time.time()
            dock, heard = self._ask()
            states = _system_states(heard)
            verdict = judge(heard, self.expected(), dock, now=time.time(), states=states)
            title = f"{stage}: {' '.join(why.split())}"
            texts = {name: process_text(one, time.time()) for name, one in heard.items()}
            texts["driver"] = str(report(dict)["stacks"])
            summary = summary_text(title, verdict, heard, dock, now=now, step=self.step())
            files = {f"{_file_name(name)}.txt": text for name, text in texts.items()}
            files |= {"dock.json": json.dumps(dock, indent=1, default=str), SUMMARY: summary}
            hang = Hang(verdict=verdict, folder=self._write(now, stage, files))
            self._tell(stage, why, hang)
            return hang

    def _ask(self) -> tuple[Dock, dict[str, Heard]]:
        question = None
        if self.dock is not None:
            question = DockQuestion(self.dock(), seconds=self.seconds)
        heard = self.switchboard.ask(seconds=self.seconds)
        return (question.answers() if question else {}), heard

    def _write(self, now: float, stage: str, files: Mapping[str, str]) -> Path | None:
        """The folder, whole from the moment when it has its name."""
        above = self.folder / FOLDER
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{_file_name(stage)}"
        try:
            above.mkdir(exist_ok=True)
            while (above / name).exists():
                name += "+"
            draft = above / f".{name}"
            draft.mkdir()
            for file, text in files.items():
                (draft / file).write_text(text, errors="replace")
            draft.rename(above / name)
            for old in sorted(found for found in above.iterdir())[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            log.warning("no stacks were written into %s: %s", above, error)
            return None
        return above / name

    def _tell(self, stage: str, why: str, hang: Hang) -> None:
        self.events.write(
            HangEvent(
                stage=stage,
                message=f"{' '.join(why.split())}; {hang.reason}",
                folder=str(hang.folder or ""),
                step=self.step(),
                missing=hang.verdict.missing,
                waiting=hang.verdict.waiting[:32],
            )
        )


def _system_states(heard: Mapping[str, Heard]) -> dict[str, str]:
    """What this machine's system says of its processes that do not answer, e.g. `stopped`."""
    states, host = {}, socket.gethostname()
    for name, one in heard.items():
        if one.report is None and one.gone is None and one.host == host:
            with contextlib.suppress(psutil.Error):
                states[name] = str(psutil.Process(one.pid).status())
    return states


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
