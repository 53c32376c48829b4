"""The command `rljob diff`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.output import exit_on_error, print_stderr, print_text
from rljob_runtime.errors import ConfigError


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run's folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another's.")],
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[A B]...",
            help="More pairs that differ in the same, each with a seed of its own.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write a page with both runs' curves overlaid."
        ),
    ] = None,
) -> None:
    """Compare two runs: their jobs, metrics, times and held-out accuracies."""
    from rljob_runtime.report.display.console import TerminalConsole
    from rljob_runtime.report.display.run_diff import ComparedRun, diff_json, diff_runs, diff_tables

    with exit_on_error():
        more = others or []
        if len(more) % 2:
            raise ConfigError(f"{more[-1]} stands alone; name runs in pairs: A B, then A B again")
        pairs = [
            (ComparedRun.of(x), ComparedRun.of(y))
            for x, y in zip(more[::2], more[1::2], strict=True)
        ]
        difference = diff_runs(ComparedRun.of(a), ComparedRun.of(b), pairs)
    if as_json:
        print_text(json.dumps(diff_json(difference), indent=2))
    else:
        TerminalConsole().print(*diff_tables(difference), sep="\n", highlight=False)
    if page:
        from rljob_runtime.report.display.overlay import render_overlay

        try:
            page.write_text(render_overlay(difference), encoding="utf-8")
        except OSError as error:
            print_stderr(f"--html: {error}")
            raise typer.Exit(ExitCode.INVALID) from None
