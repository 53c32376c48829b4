"""Checks of a bring-up that do one thing each, well or badly; run by the real processes of `course`."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rljob_runtime.cli.bring_up.place import CheckContext, NotApplicable
from rljob_runtime.cli.bring_up.record import Figures

FOR_EVER = 1000
VARIABLE = "CUDA_VISIBLE_DEVICES"


def counts(place: CheckContext) -> Figures:
    return {"accelerator": place.accelerator, "devices": 2, "names": ["A", "A"]}


def sees(place: CheckContext) -> Figures:
    """What its processes see; each waits for the others' files."""
    own = place.folder / f"seen-{place.rank}"
    own.write_text(os.environ.get(VARIABLE, "all"))
    deadline = time.monotonic() + 10
    files = [place.folder / f"seen-{rank}" for rank in range(place.size)]
    while time.monotonic() < deadline and not all(file.exists() for file in files):
        time.sleep(0.01)
    return {"seen": [file.read_text() for file in files]}


def raises(place: CheckContext) -> Figures:
    raise ValueError("7 is not 8")


def lacks(place: CheckContext) -> Figures:
    raise NotApplicable("nothing to look at")


def dies(place: CheckContext) -> Figures:
    sys.stdout.write("before the end")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def leaves(place: CheckContext) -> Figures:
    os._exit(3)


def hangs(place: CheckContext) -> Figures:
    """With a process of its own, in another session; its number is in a file of FOLDER."""
    other = subprocess.Popen(["sleep", str(FOR_EVER)], start_new_session=True)
    Path(os.environ["FOLDER"], "sleeper").write_text(str(other.pid))
    time.sleep(FOR_EVER)
    return {}


def one_raises(place: CheckContext) -> Figures:
    """The others wait for it."""
    if place.rank == 1:
        raise ValueError("no link")
    time.sleep(FOR_EVER)
    return {}
