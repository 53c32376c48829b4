"""The command `rljob report`."""

from pathlib import Path
from typing import Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.cluster.cluster_commands import Context, Namespace, report_of_job
from rljob_runtime.cli.output import RunOrName, print_stderr, print_text


def report(
    run: RunOrName,
    namespace: Namespace = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where a cluster's run goes; default: runs/NAME."),
    ] = None,
    context: Context = None,
) -> None:
    """Write report.html of a run again, from its events; a cluster's run is fetched first."""
    directory = Path(run)
    if not directory.exists() and directory.name == run:
        path = report_of_job(run, namespace=namespace, context=context, output=output)
        print_text(str(path))
        return
    if output:
        print_stderr(f"{directory} is a folder: --output is for a run on a cluster; leave it out")
        raise typer.Exit(ExitCode.INVALID)
    if not (directory / "events.jsonl").is_file():
        print_stderr(f"{directory} holds no events.jsonl; name the folder of a run")
        raise typer.Exit(ExitCode.INVALID)
    from rljob_runtime.report.display.report import write_report

    write_report(directory)
    print_text(str(directory / "report.html"))
