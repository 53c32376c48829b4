"""A driver's process: `python -m rljob_runtime.cli.driver PROCESS PIPE`, started by `run.supervisor`."""

import os
import sys

import typer

from rljob_runtime.children.forked_children import end_with_parent
from rljob_runtime.cli.output import exit_on_error
from rljob_runtime.cli.streams import install_safe_streams
from rljob_runtime.processes.link import Link
from rljob_runtime.run.launch import run_job
from rljob_runtime.run.run_request import RunRequest


def main() -> None:
    """Drive the run that the parent process requests through the pipe, and end with that process."""
    install_safe_streams()
    parent_pid, pipe = map(int, sys.argv[1:])
    link = Link.inherited(pipe)
    end_with_parent()
    if os.getppid() != parent_pid:  # the parent has already ended
        sys.exit(1)
    try:
        with exit_on_error():
            sys.exit(run_job(RunRequest.unpacked(link.ask("request")), link))
    except typer.Exit as exit_request:
        sys.exit(exit_request.exit_code)


if __name__ == "__main__":
    main()
