"""Shared by all commands: load a job, print its problems, map errors to exit codes."""

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
"""Remedies for errors of the file system."""


def file_system_refusal(error: OSError) -> str | None:
    """Return what the file system refused, with a remedy; None for other errors."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error.strerror}; raise the limit of open files (ulimit -n), such as to 65536"
    remedy = REMEDIES.get(error.errno or 0)
    if remedy is None or error.filename is None:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}; {remedy}"


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Print an error of the body and end the command: with `INVALID` for an invalid job or argument, with
    `FAILED` for other errors of rljob and of the file system."""
    try:
        yield
    except InvalidJob as invalid:
        exit_with_problems(invalid.problems)
    except RljobError as error:
        print_stderr(str(error))
        is_config_error = isinstance(error, ConfigError)
        raise typer.Exit(ExitCode.INVALID if is_config_error else ExitCode.FAILED) from None
    except OSError as error:
        if (refusal := file_system_refusal(error)) is None:
            raise
        print_stderr(refusal)
        raise typer.Exit(ExitCode.FAILED) from None


def load(file: Path) -> "RLJob":
    """Load the job of a file; end the command where it has problems."""
    from rljob_api.check.load import load_job

    with exit_on_error():
        return load_job(file)


def exit_if_any(problems: Iterable[Problem]) -> None:
    """Print the problems and end the command, if there are any."""
    if listed := list(problems):
        exit_with_problems(listed)


def exit_with_problems(problems: Iterable[Problem]) -> NoReturn:
    """Print the problems and end the command."""
    for problem in problems:
        print_stderr(str(problem))
    raise typer.Exit(ExitCode.INVALID)


def print_text(text: str) -> None:
    """Print a command's result to standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def print_stderr(text: str) -> None:
    """Print a message to standard error."""
    sys.stderr.write(f"{printable(text)}\n")


def print_note(text: str) -> None:
    """Print a note to standard error."""
    print_stderr(f"note: {text}")
