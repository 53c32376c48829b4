"""`rljob run`: the one command that trains. torch and Ray are imported once the job is valid.

The only place outside `devices/` that reads the environment.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.cli.output import JobFile, errors_end_it, load, refuse


def run(
    file: JobFile,
    output: Annotated[
        Path | None, typer.Option(help="The run's folder; default: runs/NAME.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")
    ] = False,
    resume_if_any: Annotated[
        bool, typer.Option("--resume-if-any", help="Go on where there is a run, else start one.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Without Ray: as processes of this machine alone.")
    ] = False,
) -> None:
    """Train on this machine, on emulated devices."""
    from rljob_api.check.run_rules import refusals
    from rljob_plan.plan import model_problems

    job = load(file)
    with errors_end_it():
        refuse([*refusals(job), *model_problems(job, base_dir=file.parent)])
    from rljob_runtime.cli.local_problems import local_problems
    from rljob_runtime.run.launch import run_job
    from rljob_runtime.run.run_request import RunRequest

    ray_address = None if local else os.environ.get("RAY_ADDRESS")
    refuse(local_problems(job, file.parent, alone=ray_address is None))
    # Some data sets iterate over sets: their items must not depend on the process that makes them.
    os.environ["PYTHONHASHSEED"] = "0"
    sockets = os.environ.get("RLJOB_DOCK_DIRECTORY")
    request = RunRequest(
        job=job,
        job_file=file,
        output=output,
        resume="yes" if resume else "if-any" if resume_if_any else "no",
        cache_dir=Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob"),
        ray_address=ray_address,
        local=local,
        status=_status_endpoint(),
        dock_directory=Path(sockets) if sockets else None,
    )
    with errors_end_it():  # remote storage that does not answer: another try may find it
        raise typer.Exit(run_job(request))


def _status_endpoint() -> tuple[int, str] | None:
    """Where the operator asks for progress, as its pods say: a port, and the job's token."""
    port, token = os.environ.get("RLJOB_STATUS_PORT"), os.environ.get("RAY_AUTH_TOKEN")
    return (int(port), token) if port and token else None
