"""The command `rljob analyze`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rljob_runtime.cli.output import exit_on_error, print_text


def analyze(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name what a run's steps wait for, what it costs, and the change of the job that would help."""
    from rljob_runtime.report.analysis.analysis_text import analysis_json, analysis_tables
    from rljob_runtime.report.analysis.run import analyze_run
    from rljob_runtime.report.display.console import TerminalConsole

    with exit_on_error():
        analysis = analyze_run(run)
    if as_json:
        print_text(json.dumps(analysis_json(analysis), indent=2))
    else:
        TerminalConsole().print(*analysis_tables(analysis), sep="\n", highlight=False)
