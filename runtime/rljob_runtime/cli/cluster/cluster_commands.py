"""The commands that query a cluster: `rljob status` and `logs`, and `report`, `watch` and `stacks` of a name.

Called by `main`, whose `--help` must stay fast: functions import everything but typer.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.output import print_stderr, print_text

if TYPE_CHECKING:
    from rich.console import Console

    from rljob_runtime.cli.cluster.api_calls import Calls
    from rljob_runtime.report.watch.runs import WatchedRun

NO_FOLDER = "{} is no folder here, so the cluster is asked for a job: "

JobName = Annotated[str, typer.Argument(metavar="NAME", help="Name of an RLJob on the cluster.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Default: the kubeconfig context's.")
]
Context = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig; default: the current.")
]


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One RLJob; default: all of the namespace.")
    ] = None,
    namespace: Namespace = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Follow until the end; exit code 1 if it fails.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the object, not a page.")] = False,
    context: Context = None,
) -> None:
    """Show jobs on the cluster: a table, or one job's progress, pods, failures and events."""
    if watch and name is None:
        _refuse("--watch follows one job: rljob status NAME --watch")
    with open_cluster(namespace, context) as calls:
        if name is None:
            _show_all(calls, as_json=as_json)
        elif watch:
            raise typer.Exit(_watch(calls, name, as_json=as_json))
        else:
            _show_one(calls, name, as_json=as_json)


def logs(
    name: JobName,
    namespace: Namespace = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="One attempt alone, by its number, from 0.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="So many last lines; default: all.")
    ] = None,
    context: Context = None,
) -> None:
    """Print what a job's driver prints, from its head's pod."""
    if follow and attempt is not None:
        _refuse("--attempt is read from a file, which -f does not follow; leave one of the two out")
    with open_cluster(namespace, context) as calls:
        from rljob_runtime.cli.cluster.ask import find_job, head_file_reader
        from rljob_runtime.cli.cluster.logs import follow_log, log_of_attempt, read_log

        job = find_job(calls, name)
        lines: Iterable[str]
        if attempt is not None:
            lines = log_of_attempt(job, attempt, tail=tail, read=head_file_reader(calls, job))
        elif follow:
            lines = follow_log(calls, name, tail=tail, report=print_stderr)
        else:
            lines = read_log(calls, job, tail=tail)
        for line in lines:
            _print(line)


def report_of_job(
    name: str, *, namespace: str | None, context: str | None, output: Path | None
) -> Path:
    """Fetch the run of a job into `output` (default: runs/NAME) and write its report. Returns its path."""
    folder = output or Path("runs") / name
    with open_cluster(namespace, context, why=NO_FOLDER.format(name)) as calls:
        from rljob_runtime.cli.cluster.ask import find_job, head_file_reader
        from rljob_runtime.cli.cluster.fetch import fetch
        from rljob_runtime.report.display.report import write_report

        job = find_job(calls, name)
        fetch(job, folder, read=head_file_reader(calls, job))
        return write_report(folder)


def stacks_of_job(name: str, *, namespace: str | None, context: str | None) -> str:
    """Return the output of `rljob stacks` in the container of the job's head, where its driver runs."""
    with open_cluster(namespace, context, why=NO_FOLDER.format(name)) as calls:
        from rljob_runtime.cli.cluster.ask import find_job
        from rljob_runtime.cli.cluster.exec import run_remotely
        from rljob_runtime.cli.cluster.job_facts import run_folder
        from rljob_runtime.cli.cluster.logs import head_of
        from rljob_runtime.errors import ClusterError

        job = find_job(calls, name)
        head = head_of(job, calls.pods(job["metadata"]["uid"]))["metadata"]["name"]
        command = ["rljob", "stacks", str(run_folder(job))]
        code, output, complaint = run_remotely(calls, head, command, label="rljob stacks")
        if code != 0:
            raise ClusterError(f"pod {head}: {complaint.strip()}")
        return output.decode(errors="replace")


@contextlib.contextmanager
def watched_job(name: str, *, namespace: str | None, context: str | None) -> Iterator["WatchedRun"]:
    """Yield the run of a job, for watching it from here."""
    with open_cluster(namespace, context, why=NO_FOLDER.format(name)) as calls:
        from rljob_runtime.cli.cluster.watched import ClusterRun

        yield ClusterRun(calls, name)


def _show_all(calls: "Calls", *, as_json: bool) -> None:
    from rljob_runtime.cli.cluster.job_table import jobs_table

    jobs = calls.jobs()
    if as_json:
        _print(json.dumps(jobs, indent=2))
    elif jobs["items"]:
        console_of().print(jobs_table(jobs["items"], unix_s=_unix_seconds()))
    else:
        print_stderr(f"namespace {calls.namespace} has no RLJobs ({calls.connection.where})")


def _show_one(calls: "Calls", name: str, *, as_json: bool) -> None:
    from rljob_runtime.cli.cluster.ask import find_job, take_snapshot
    from rljob_runtime.cli.cluster.job_page import page

    job = find_job(calls, name)
    if as_json:
        _print(json.dumps(job, indent=2))
        return
    console = console_of()
    console.print(page(take_snapshot(calls, job), unix_s=_unix_seconds(), width=console.width))


def _watch(calls: "Calls", name: str, *, as_json: bool) -> int:
    """Follow the job to its end and return the exit code."""
    from rljob_runtime.cli.cluster.ask import find_job
    from rljob_runtime.cli.cluster.job_facts import ending
    from rljob_runtime.cli.cluster.job_page import status_line
    from rljob_runtime.cli.cluster.watch import follow

    console, line = console_of(), ""
    job = find_job(calls, name)
    states = follow(calls, job)
    if console.is_terminal and not as_json:
        job = _watch_page(calls, states, console)
    else:
        for job in states:
            update = json.dumps(job) if as_json else status_line(job)
            if update != line:
                _print(update)
            line = update
    return 0 if ending(job) == "Succeeded" else ExitCode.FAILED


def _watch_page(
    calls: "Calls", states: Iterator[dict[str, Any]], console: "Console"
) -> dict[str, Any]:
    """Keep one page up to date and leave the last one. Returns the job as it ended."""
    from rich.live import Live

    from rljob_runtime.cli.cluster.ask import take_snapshot
    from rljob_runtime.cli.cluster.job_page import page

    snapshot = take_snapshot(calls, next(states))

    def render() -> Any:
        return page(snapshot, unix_s=_unix_seconds(), width=console.width)

    with Live(console=console, get_renderable=render, refresh_per_second=1, transient=True):
        for state in states:
            snapshot = take_snapshot(calls, state)
    console.print(render())
    return dict(snapshot.job)


@contextlib.contextmanager
def open_cluster(namespace: str | None, context: str | None, *, why: str = "") -> Iterator["Calls"]:
    """Connect to the cluster; an error in the body ends the command with a line that starts with `why`."""
    from rljob_api.spec.json_text import allow_api_server_nesting
    from rljob_runtime.cli.cluster.connect import connect
    from rljob_runtime.errors import RljobError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode prints ? instead
    try:
        connection = connect(os.environ, context=context, namespace=namespace)
        from rljob_runtime.cli.cluster.api_calls import Calls

        allow_api_server_nesting()
        yield Calls(connection)
    except RljobError as error:
        _refuse(f"{why}{error}")
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.KILLED) from None


def console_of() -> "Console":
    """Return the terminal's console, or one for plain text of a fixed width."""
    from rljob_runtime.cli.cluster.job_page import WIDTH
    from rljob_runtime.report.display.console import TerminalConsole

    console = TerminalConsole(highlight=False)
    return console if console.is_terminal else TerminalConsole(highlight=False, width=WIDTH)


def _unix_seconds() -> float:
    return time.time()


def _refuse(text: str) -> NoReturn:
    print_stderr(text)
    raise typer.Exit(ExitCode.INVALID)


def _print(text: str) -> None:
    print_text(text)
    sys.stdout.flush()
