"""Drives every command of `rljob` through broken surroundings, each in a fork of one process that has
imported what they need; prints what became of them as JSON, by surrounding and command.

    python every_command.py JOB RUN FOLDER SURROUNDING...
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import kubernetes  # noqa: F401
import torch  # noqa: F401

from rljob_runtime.cli.main import main
from rljob_runtime.cli.streams import reopen_closed
from rljob_runtime.task.data.gym import make_dataset

SECONDS = 120.0


def set_to(**variables: str) -> Callable[[], None]:
    def prepare() -> None:
        os.environ |= variables
        tempfile.tempdir = None

    return prepare


def without_home() -> None:
    for name in ("HOME", "RLJOB_CACHE", "KUBECONFIG"):
        os.environ.pop(name, None)


def in_removed_folder() -> None:
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def closed(number: int, name: str) -> Callable[[], None]:
    """As a process begins whose parent has closed it."""

    def prepare() -> None:
        os.close(number)
        setattr(sys, name, None)
        reopen_closed()

    return prepare


def full_output() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))


def kubeconfig(content: bytes) -> Callable[[], None]:
    def prepare() -> None:
        file = Path(tempfile.mkdtemp()) / "config"
        file.write_bytes(content)
        os.environ["KUBECONFIG"] = str(file)

    return prepare


SURROUNDINGS: dict[str, Callable[[], None]] = {
    "a working folder that was removed": in_removed_folder,
    "standard input is closed": closed(0, "stdin"),
    "standard output is closed": closed(1, "stdout"),
    "standard error is closed": closed(2, "stderr"),
    "standard output is full": full_output,
    "no home": without_home,
    "a home that is none": set_to(HOME="/proc/none"),
    "a cache that is a file": set_to(RLJOB_CACHE="/dev/null"),
    "no folder of temporary files": set_to(TMPDIR="/proc/none"),
    "few open files": few_files,
    "a window without a size": set_to(COLUMNS="0", LINES="0", TERM=""),
    "numbers that are none": set_to(COLUMNS="x", OMP_NUM_THREADS="x"),
    "an empty PATH": set_to(PATH=""),
    "a language that is none": set_to(LC_ALL="xx_YY", PYTHONIOENCODING="ascii"),
    "proxies that are none": set_to(HTTP_PROXY="::none::", HTTPS_PROXY="::none::"),
    "a kubeconfig that is missing": set_to(KUBECONFIG="/proc/none"),
    "a kubeconfig that is a folder": set_to(KUBECONFIG="/proc"),
    "a kubeconfig that is noise": kubeconfig(b"\x00\xff{"),
    "a kubeconfig that is a list": kubeconfig(b"- 1\n"),
    "a kubeconfig that is empty": kubeconfig(b""),
    "a kubeconfig that names nothing": kubeconfig(b"contexts: 3\ncurrent-context: a\n"),
}


def commands(job: str, run: str, own: Path) -> dict[str, list[str]]:
    """Of all commands one call each; those that would train for long are refused early."""
    return {
        "validate": [job],
        "plan": [job],
        "simulate": [job, "--output", f"{own}/simulated"],
        "run": [job, "--local", "--output", f"{job}/below-a-file"],
        "replay": [run, "--step", "1000", "--output", f"{own}/replayed"],
        "fork": [run, "--step", "1000", "--set", "spec.seed=4", "--output", f"{own}/forked"],
        "report": [run],
        "stacks": [run],
        "analyze": [run],
        "diff": [run, run],
        "export": [run, f"{own}/exported"],
        "watch": [run],
        "clean": [],
        "status": [],
        "logs": ["job"],
        "doctor": [],
    }


def live(words: list[str], prepare: Callable[[], None], folder: Path) -> None:
    """The fork's life."""
    os.setpgid(0, 0)
    os.chdir(folder)
    for number, name in enumerate(("in", "out", "error")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.argv = ["rljob", *words]
    code = 0
    prepare()
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 70
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def driven(words: list[str], prepare: Callable[[], None], folder: Path) -> tuple[int, str]:
    """(exit code, what standard error has)."""
    pid = os.fork()
    if not pid:
        try:
            live(words, prepare, folder)
        finally:
            os._exit(71)
    until, ended, status = time.monotonic() + SECONDS, 0, 0
    while not ended and time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(pid, 0)
    said = (folder / "error").read_text(errors="replace")
    return os.waitstatus_to_exitcode(status), said


def drive() -> None:
    """All of it."""
    job, run, place, *names = sys.argv[1:]
    make_dataset("spell_backward", {}, seed=1, size=1)
    found: dict[str, dict[str, tuple[int, str]]] = {}
    for name in names:
        found[name] = {}
        for number, command in enumerate(commands(job, run, Path())):
            folder = Path(place) / f"{name} {number}".replace(" ", "-")
            folder.mkdir()
            own = Path(shutil.copytree(run, folder / "run"))
            words = [command, *commands(job, str(own), folder)[command]]
            found[name][command] = driven(words, SURROUNDINGS[name], folder)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    drive()
