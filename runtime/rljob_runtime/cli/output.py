"""What all commands have in common: reading a job, saying what is wrong with it, errors as exit codes."""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_runtime.errors import ConfigError, RljobError

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob

JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="The RLJob, a YAML file.")]
RunOrName = Annotated[
    str, typer.Argument(metavar="DIR|NAME", help="A run's folder, else an RLJob on the cluster.")
]


@contextlib.contextmanager
def errors_end_it() -> Iterator[None]:
    """Within, what a job or an argument has wrong ends the command with `INVALID`, any other error of rljob's
    with `FAILED`; both are said."""
    try:
        yield
    except InvalidJob as invalid:
        end_with(invalid.problems)
    except RljobError as error:
        say(str(error))
        wrong = isinstance(error, ConfigError)
        raise typer.Exit(ExitCode.INVALID if wrong else ExitCode.FAILED) from None


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
    sys.stdout.write(f"{text}\n")


def say(text: str) -> None:
    """What is beside it."""
    sys.stderr.write(f"{text}\n")


def note(text: str) -> None:
    """What a user may want to know."""
    say(f"note: {text}")
