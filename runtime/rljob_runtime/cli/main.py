"""The command line: validate, plan, simulate, run, replay, fork, report, stacks, analyze, diff, export,
watch, clean; of a cluster: status, logs, doctor.

`--help` imports typer alone, checks and plans pydantic; torch and Ray are imported by `run`, once the
job is valid, and torch by `export`.
"""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from rljob_api.spec.exit_codes import MEANING, ExitCode
from rljob_runtime.cli.analyze_command import analyze
from rljob_runtime.cli.clean_command import clean
from rljob_runtime.cli.cluster.cluster_commands import logs, status
from rljob_runtime.cli.diff_command import diff
from rljob_runtime.cli.doctor.doctor_command import doctor
from rljob_runtime.cli.export_command import export
from rljob_runtime.cli.fork_command import fork
from rljob_runtime.cli.output import file_system_refusal, print_stderr
from rljob_runtime.cli.plan_command import plan
from rljob_runtime.cli.replay_command import replay
from rljob_runtime.cli.report_command import report
from rljob_runtime.cli.run_command import run
from rljob_runtime.cli.simulate_command import simulate
from rljob_runtime.cli.stacks_command import stacks
from rljob_runtime.cli.streams import install_safe_streams, output_error
from rljob_runtime.cli.validate_command import validate
from rljob_runtime.cli.watch_command import watch

COMMANDS = (
    validate, plan, simulate, run, replay, fork, report, stacks, analyze, diff, export, watch, clean, status,
    logs, doctor,
)  # fmt: skip
"""All commands in the order of the help."""

EXIT_CODES = "\b\nExit codes:\n" + "\n".join(f"  {code:<4d} {MEANING[code]}" for code in ExitCode)

app = typer.Typer(
    help="Reinforcement-learning post-training of language models, one RLJob at a time.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

for command in COMMANDS:
    app.command()(command)


def print_version(requested: bool) -> None:
    """Print the installed version and exit, if `--version` is given."""
    if requested:
        typer.echo(f"rljob {version('rljob')}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
]


@app.callback()
def options(show_version: VersionOption = False) -> None: ...


TRAINING = ("run", "replay", "fork")
"""Commands that write their results to a folder, so that failing output does not change the exit code."""


def main() -> None:
    """Run the command line of `rljob`."""
    install_safe_streams()
    try:
        os.getcwd()
    except FileNotFoundError:
        print_stderr(
            "the working folder was removed; change to one that is there, and call rljob again"
        )
        sys.exit(ExitCode.FAILED)
    try:
        app()
    except SystemExit as end:
        sys.stdout.flush()
        error = output_error()
        if error is None or end.code or sys.argv[1:2][0] in TRAINING:
            raise
        print_stderr(f"standard output cannot be written: {error.strerror}")
        sys.exit(ExitCode.FAILED)
    except OSError as error:
        if (refusal := file_system_refusal(error)) is None:
            raise
        print_stderr(refusal)
        sys.exit(ExitCode.FAILED)
