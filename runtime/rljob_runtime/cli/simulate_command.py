"""The command `rljob simulate`: simulate one job, several jobs, or a recorded run."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.problems import Problem
from rljob_plan.machines import RATE_NAMES
from rljob_runtime.cli.output import exit_on_error, exit_with_problems, load, print_text

if TYPE_CHECKING:
    from rljob_runtime.simulate.several import SimulationSettings
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
    from rljob_runtime.simulate.several import SimulationSettings

    _refuse_combinations(sweep=sweep, compare=compare, output=output)
    with exit_on_error():
        fit = fit_run(run) if run is not None else None
    if file is None:
        if fit is None:
            exit_with_problems(
                [Problem("FILE", "is missing; name a job's file, or a run's folder by --from")]
            )
        print_text(json.dumps(fit.json(), indent=2) if as_json else fit_text(fit))
        return
    request = SimulationSettings(
        seeds=seeds,
        steps=steps,
        lengths=lengths,
        price=price,
        rates=rate or [],
        measured=fit.measured if fit else None,
    )
    if sweep or compare:
        _simulate_several(file, request, sweep or [], compare or [], as_json)
    else:
        _simulate_one(file, request, output, as_json)


def _simulate_one(
    file: Path, request: "SimulationSettings", output: Path | None, as_json: bool
) -> None:
    from rljob_runtime.report.display.report import write_report
    from rljob_runtime.simulate.answers_text import answers_text
    from rljob_runtime.simulate.several import simulate_seeds

    job = load(file)
    with exit_on_error():
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
        answers = simulate_seeds(job, base_dir=file.parent, settings=request, output=output)
        if output is not None:
            write_report(output)
    print_text(json.dumps(answers.json(), indent=2) if as_json else answers_text(answers))


def _simulate_several(
    file: Path, request: "SimulationSettings", sweep: list[str], compare: list[Path], as_json: bool
) -> None:
    from rljob_runtime.simulate.sweep import compare_jobs, sweep_job, sweep_text

    job = load(file)
    table: Sweep
    with exit_on_error():
        if sweep:
            table = sweep_job(job, sweep, base_dir=file.parent, settings=request)
        else:
            table = compare_jobs([file, *compare], settings=request)
    print_text(json.dumps(table.json(), indent=2) if as_json else sweep_text(table))
    if table.first is None:
        raise typer.Exit(ExitCode.INVALID)


def _refuse_combinations(**options: object) -> None:
    """End the command if more than one of these options is set."""
    given_options = [name for name, value in options.items() if value]
    if len(given_options) > 1:
        exit_with_problems(
            [
                Problem(
                    f"--{given_options[1]}",
                    f"does not go with --{given_options[0]}; use one of them",
                )
            ]
        )
