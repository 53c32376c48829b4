"""The command `rljob watch`. Called by `main`, whose `--help` must stay fast: functions import everything but
typer."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.cluster.cluster_commands import (
    Context,
    Namespace,
    watched_job,
)
from rljob_runtime.cli.output import print_stderr, print_text

if TYPE_CHECKING:
    from rljob_runtime.report.watch.runs import WatchedRun

PATIENCE_SECONDS = 60.0
LOCAL_HOST = "127.0.0.1"


def watch(
    run: Annotated[
        str,
        typer.Argument(metavar="DIR|NAME", help="A run's folder, else an RLJob on the cluster."),
    ],
    namespace: Namespace = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page for a browser, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="With --web: the port; default: a free one."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="With --web: the address that listens; default: 127.0.0.1, this machine."
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="How long the run's begin is waited for."),
    ] = PATIENCE_SECONDS,
    context: Context = None,
) -> None:
    """Show a run live, as `rljob run` does, and exit as it does; Ctrl-C leaves the run alone."""
    if not web and (port is not None or host is not None):
        print_stderr("--port and --host are for the page; add --web or leave them out")
        raise typer.Exit(ExitCode.INVALID)
    with _watched(run, namespace, context, web=web) as watched_run:
        raise typer.Exit(_serve(watched_run, host, port) if web else _show(watched_run, wait))


@contextlib.contextmanager
def _watched(
    run: str, namespace: str | None, context: str | None, *, web: bool
) -> Iterator["WatchedRun"]:
    directory = Path(run)
    if not directory.exists() and directory.name == run:
        with watched_job(run, namespace=namespace, context=context) as job:
            yield job
        return
    from rljob_runtime.report.display.history import TAIL_BYTES
    from rljob_runtime.report.watch.runs import LocalRun

    if directory.is_file():
        print_stderr(f"{directory} is a file; name the folder of a run")
        raise typer.Exit(ExitCode.INVALID)
    yield LocalRun(directory) if web else LocalRun(directory, tail_bytes=TAIL_BYTES)


def _show(run: "WatchedRun", patience_seconds: float) -> int:
    from rljob_runtime.errors import ClusterError, ConfigError, RljobError
    from rljob_runtime.report.display.display import display_after
    from rljob_runtime.report.watch.on_terminal import TerminalWatch

    watch = TerminalWatch(
        run,
        lambda earlier: display_after(earlier, report=run.report),
        patience_seconds=patience_seconds,
        notify=print_stderr,
    )
    try:
        code = watch.run_until_end()
    except KeyboardInterrupt:
        print_stderr(f"{run.label}: no longer watched; the run goes on")
        return ExitCode.KILLED
    except ClusterError:
        raise  # printed by `open_cluster`
    except RljobError as error:
        print_stderr(str(error))
        return ExitCode.INVALID if isinstance(error, ConfigError) else ExitCode.FAILED
    print_text(f"{run.label}: the run ended with exit status {code}")
    return code


def _serve(run: "WatchedRun", host: str | None, port: int | None) -> int:
    """Serve the page until Ctrl-C. Its URL has a random token in the fragment, which browsers do not send."""
    import secrets
    import threading

    from rljob_runtime.dock.thread import ServerThread
    from rljob_runtime.report.watch.http_server import HttpServer
    from rljob_runtime.report.watch.live_document import LiveRun
    from rljob_runtime.report.watch.watched_page import Page

    token = secrets.token_urlsafe(24)
    host, port = host or LOCAL_HOST, port or 0
    server = ServerThread(HttpServer(Page(LiveRun(run), token).routes(), host=host, port=port))
    try:
        listening, number = server.start()
    except (OSError, OverflowError) as error:
        print_stderr(
            f"cannot listen on {host}, port {port}: {error}; name others with --host and --port"
        )
        return ExitCode.INVALID
    address = f"http://{listening}:{number}/#token={token}"
    sys.stdout.write(f"{run.label}: {address}  (Ctrl-C ends the page, not the run)\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    server.stop()
    return 0
