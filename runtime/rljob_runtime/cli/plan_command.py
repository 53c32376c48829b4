"""The command `rljob plan`, and its option `--search`."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_api.spec.problems import Problem
from rljob_plan.machines import RATE_NAMES
from rljob_runtime.cli.output import (
    JobFile,
    exit_if_any,
    exit_on_error,
    exit_with_problems,
    load,
    print_text,
)

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob


class Placements(StrEnum):
    """Placements that `--search` considers."""

    JOB = "job"
    COLOCATED = "colocated"
    SEPARATED = "separated"
    ANY = "any"


def plan(
    file: JobFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    search: Annotated[
        bool, typer.Option("--search", help="Propose layouts, by predicted time of a step.")
    ] = False,
    top: Annotated[
        int | None, typer.Option(min=1, max=100, help="With --search: layouts; default: 5.")
    ] = None,
    placement: Annotated[
        Placements | None,
        typer.Option(help="With --search: who has which devices; default: as the job says."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help=f"With --search: a rate of the devices, one of {', '.join(RATE_NAMES)}.",
        ),
    ] = None,
) -> None:
    """Print ranks, pods, sample volumes, resharding and memory, or with --search faster layouts; needs no
    cluster and no torch."""
    from rljob_plan.plan import make_plan
    from rljob_plan.plan_json import plan_json
    from rljob_plan.plan_text import plan_text

    job = load(file)
    if search:
        _print_search(job, file.parent, as_json, top or 5, placement, rate or [])
        return
    for option, value in (("--top", top), ("--placement", placement), ("--rate", rate)):
        if value is not None:
            exit_with_problems(
                [Problem(option, "has no use without --search; add --search or leave it out")]
            )
    planned = make_plan(job, base_dir=file.parent)
    print_text(json.dumps(plan_json(planned), indent=2) if as_json else plan_text(planned))
    exit_if_any(planned.problems)


def _print_search(
    job: "RLJob",
    folder: Path,
    as_json: bool,
    top: int,
    placement: Placements | None,
    rates: list[str],
) -> None:
    from rljob_plan.search.job_search import search_job
    from rljob_plan.search.search_json import search_json
    from rljob_plan.search.search_text import search_text

    placement_name: Any = placement.value if placement else "job"
    with exit_on_error():
        ranking, remedies = search_job(
            job, base_dir=folder, top=top, placements=placement_name, rates=rates
        )
    if as_json:
        print_text(json.dumps(search_json(ranking, remedies), indent=2))
    else:
        print_text(search_text(ranking, remedies))
    if not ranking.proposals:
        raise typer.Exit(ExitCode.INVALID)
