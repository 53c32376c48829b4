"""The command `rljob run`, whose `train` also serves `replay` and `fork`. torch and Ray are imported once
jobs are valid.

The only place outside `devices/` that reads the environment.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rljob_runtime.cli.output import JobFile, exit_if_any, exit_on_error, load

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob
    from rljob_runtime.run.run_request import RunRequest

Local = Annotated[
    bool, typer.Option("--local", help="Without Ray: as processes of this machine alone.")
]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Go on although data, reward files or the tokenizer are not those of the run's beginning.",
    ),
]
AcceptUntested = Annotated[
    bool,
    typer.Option(
        "--accept-untested", help="On devices that no bring-up has passed on (rljob doctor)."
    ),
]


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
    local: Local = False,
    accept_untested: AcceptUntested = False,
    accept_changes: AcceptChanges = False,
) -> None:
    """Train on this machine, on emulated devices or on its own."""
    job = load(file)
    request = request_of(
        job,
        file=file,
        output=output,
        resume="yes" if resume else "if-any" if resume_if_any else "no",
        local=local,
        accept_untested=accept_untested,
        accept_changes=accept_changes,
    )
    with exit_on_error():  # remote storage may not answer; a retry may succeed
        raise typer.Exit(train(request))


def request_of(
    job: "RLJob",
    *,
    file: Path,
    output: Path | None,
    resume: Literal["no", "yes", "if-any"],
    local: bool,
    accept_untested: bool,
    base: Path | None = None,
    until: int | None = None,
    accept_changes: bool = False,
) -> "RunRequest":
    """Return the request of a run; end the command where the job cannot run here. file: the job's. base: the
    folder of its relative paths, None for the file's folder."""
    from rljob_api.check.run_rules import refusals
    from rljob_api.model.architecture import find_shape
    from rljob_plan.plan import model_problems

    folder = base or file.parent
    with exit_on_error():
        shape = find_shape(job.spec.model, base_dir=folder)
        exit_if_any([*refusals(job, shape), *model_problems(job, base_dir=folder)])
    from rljob_runtime.cli.bring_up.judgement import untested
    from rljob_runtime.cli.local_problems import local_problems, socket_problems, without_ray
    from rljob_runtime.cli.ray_address import check_ray_answers
    from rljob_runtime.run.run_request import RunRequest

    ray_address = None if local else os.environ.get("RAY_ADDRESS")
    with exit_on_error():
        exit_if_any([] if accept_untested else untested(job, folder))
        exit_if_any(without_ray(job) if local else [])
        ray_folder = os.environ.get("RAY_TMPDIR")
        exit_if_any([] if ray_address else socket_problems(ray_folder=ray_folder, local=local))
    exit_if_any(local_problems(job, folder, alone=ray_address is None))
    cache = _cache_folder()
    with exit_on_error():
        cache.mkdir(parents=True, exist_ok=True)
        check_ray_answers(ray_address)
    # Some data sets iterate over sets: their items must not depend on the process that makes them.
    os.environ["PYTHONHASHSEED"] = "0"
    dock_directory = os.environ.get("RLJOB_DOCK_DIRECTORY")
    return RunRequest(
        job=job,
        job_file=file,
        output=output,
        resume=resume,
        cache_dir=cache,
        ray_address=ray_address,
        local=local,
        status=_status_endpoint(),
        dock_directory=Path(dock_directory) if dock_directory else None,
        base=base,
        until=until,
        accept_changes=accept_changes,
    )


def _cache_folder() -> Path:
    """Return RLJOB_CACHE, else a folder below the user's home, else one below the folder of temporary
    files."""
    if configured := os.environ.get("RLJOB_CACHE"):
        return Path(configured)
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor a passwd entry, as in a container with an arbitrary uid
        home = Path(tempfile.gettempdir())
    return home / ".cache" / "rljob"


def train(request: "RunRequest") -> int:
    """Train and return the exit code: in this process without Ray; on Ray, where workers outlive a driver, in
    a child process."""
    if request.local:
        from rljob_runtime.run.launch import run_job

        return run_job(request)
    from rljob_runtime.run.supervisor import supervise

    return supervise(request, [sys.executable, "-m", "rljob_runtime.cli.driver"])


def _status_endpoint() -> tuple[int, str] | None:
    """Return the port at which the operator requests progress, and the job's token, as its pods set them."""
    port, token = os.environ.get("RLJOB_STATUS_PORT"), os.environ.get("RAY_AUTH_TOKEN")
    return (int(port), token) if port and token else None
