"""A driver's process: `python -m rljob_runtime.cli.driver PROCESS PIPE`, started by `run.supervisor`."""

import os
import sys

import typer

from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.cli.output import errors_end_it
from rljob_runtime.cli.streams import keep_printing
from rljob_runtime.processes.link import Link
from rljob_runtime.run.launch import run_job
from rljob_runtime.run.run_request import RunRequest


def main() -> None:
    """Drive the run that the process above has, through the pipe, and end with it."""
    keep_printing()
    above, pipe = map(int, sys.argv[1:])
    link = Link.inherited(pipe)
    end_with_parent()
    if os.getppid() != above:  # it is gone already
        sys.exit(1)
    try:
        with errors_end_it():
            sys.exit(run_job(RunRequest.unpacked(link.ask("request")), link))
    except typer.Exit as ended:
        sys.exit(ended.exit_code)


if __name__ == "__main__":
    main()
