"""`rljob simulate`: of one job, of many, and from a recorded run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.problems import Problem
from rljob_plan.machines import RATE_NAMES
from rljob_runtime.cli.output import end_with, errors_end_it, load, print_text

if TYPE_CHECKING:
    from rljob_runtime.simulate.several import Asked
    from rljob_runtime.simulate.sweep import Sweep


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The RLJob, a YAML file; with --from it may be left out."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=100, help="Runs, each with a seed of its own.")
    ] = 3,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each run; default: the job's, 10 at most.")
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="lognormal:MEAN,SIGMA|fixed:TOKENS",
            help="Of responses, in tokens; default: a mean of 0.4 times the longest, sigma 0.6.",
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a device-hour.")] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER", help=f"A rate of the devices, one of {', '.join(RATE_NAMES)}."
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,…",
            help="A row for each of these values of a field of the spec; again: for each combination. "
            "K1+K2=A1+A2,B1+B2 changes two fields together, null takes one away.",
        ),
    ] = None,
    compare: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another job, for a row beside this one."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="A run's folder: rates that it measured; without FILE, how well they foretell it.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the first run's events and its report page."),
    ] = None,
) -> None:
    """Run the job in virtual time: its own decisions, on devices that take the planner's seconds. Needs no
    cluster, no model's weights and no torch."""
    from rljob_runtime.simulate.fit import fit_run, fit_text
    from rljob_runtime.simulate.several import Asked

    _refuse_together(sweep=sweep, compare=compare, output=output)
    with errors_end_it():
        fit = fit_run(run) if run is not None else None
    if file is None:
        if fit is None:
            end_with(
                [Problem("FILE", "is missing; name a job's file, or a run's folder by --from")]
            )
        print_text(json.dumps(fit.json(), indent=2) if as_json else fit_text(fit))
        return
    asked = Asked(
        seeds=seeds,
        steps=steps,
        lengths=lengths,
        price=price,
        rates=rate or [],
        measured=fit.measured if fit else None,
    )
    if sweep or compare:
        _many(file, asked, sweep or [], compare or [], as_json)
    else:
        _one(file, asked, output, as_json)


def _one(file: Path, asked: "Asked", output: Path | None, as_json: bool) -> None:
    from rljob_runtime.report.display.report import write_report
    from rljob_runtime.simulate.answers_text import answers_text
    from rljob_runtime.simulate.several import answered

    job = load(file)
    with errors_end_it():
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
        found = answered(job, base_dir=file.parent, asked=asked, output=output)
        if output is not None:
            write_report(output)
    print_text(json.dumps(found.json(), indent=2) if as_json else answers_text(found))


def _many(file: Path, asked: "Asked", sweep: list[str], compare: list[Path], as_json: bool) -> None:
    from rljob_runtime.simulate.sweep import compare_jobs, sweep_job, sweep_text

    job = load(file)
    found: Sweep
    with errors_end_it():
        if sweep:
            found = sweep_job(job, sweep, base_dir=file.parent, asked=asked)
        else:
            found = compare_jobs([file, *compare], asked=asked)
    print_text(json.dumps(found.json(), indent=2) if as_json else sweep_text(found))
    if found.first is None:
        raise typer.Exit(ExitCode.INVALID)


def _refuse_together(**options: object) -> None:
    """Only one of these is asked for at a time."""
    asked = [name for name, value in options.items() if value]
    if len(asked) > 1:
        end_with([Problem(f"--{asked[1]}", f"does not go with --{asked[0]}; use one of them")])
