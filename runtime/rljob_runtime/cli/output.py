"""What all commands have in common: reading a job, saying what is wrong with it, errors as exit codes."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.terminal_text import printable
from rljob_runtime.errors import ConfigError, RljobError

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob

JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="The RLJob, a YAML file.")]
RunOrName = Annotated[
    str, typer.Argument(metavar="DIR|NAME", help="A run's folder, else an RLJob on the cluster.")
]


NO_PLACE = "name a path that can be one (--output, RLJOB_CACHE, HOME, TMPDIR)"
NO_RIGHT = "name a place that this user may write (--output, RLJOB_CACHE, HOME, TMPDIR)"
NO_SPACE = "free some space there, or name another place"
REMEDIES = {
    errno.ENOENT: NO_PLACE,
    errno.ENOTDIR: NO_PLACE,
    errno.EEXIST: NO_PLACE,
    errno.EISDIR: NO_PLACE,
    errno.ENAMETOOLONG: NO_PLACE,
    errno.EACCES: NO_RIGHT,
    errno.EPERM: NO_RIGHT,
    errno.EROFS: NO_RIGHT,
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
}
"""For what the file system refuses."""


def refused_by_files(error: OSError) -> str | None:
    """Return what the file system refused, with a remedy; None for other errors."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}; raise the limit of open files (ulimit -n), such as to 65536"
    remedy = REMEDIES.get(error.errno or 0)
    if remedy is None or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}"


@contextlib.contextmanager
def errors_end_it() -> Iterator[None]:
    """Within, what a job or an argument has wrong ends the command with `INVALID`; any other error of rljob's
    and what the file system refuses with `FAILED`. All are said."""
    try:
        yield
    except InvalidJob as invalid:
        end_with(invalid.problems)
    except RljobError as error:
        say(str(error))
        wrong = isinstance(error, ConfigError)
        raise typer.Exit(ExitCode.INVALID if wrong else ExitCode.FAILED) from None
    except OSError as error:
        if (refusal := refused_by_files(error)) is None:
            raise
        say(refusal)
        raise typer.Exit(ExitCode.FAILED) from None


def load(file: Path) -> "RLJob":
    """The job of a file; the command ends where it has problems."""
    from rljob_api.check.load import load_job

    with errors_end_it():
        return load_job(file)


def refuse(problems: Iterable[Problem]) -> None:
    """End the command where there are any."""
    if found := list(problems):
        end_with(found)


def end_with(problems: Iterable[Problem]) -> NoReturn:
    """Say them, and end the command."""
    for problem in problems:
        say(str(problem))
    raise typer.Exit(ExitCode.INVALID)


def print_text(text: str) -> None:
    """What was asked for."""
    sys.stdout.write(f"{printable(text)}\n")


def say(text: str) -> None:
    """What is beside it."""
    sys.stderr.write(f"{printable(text)}\n")


def note(text: str) -> None:
    """What a user may want to know."""
    say(f"note: {text}")
