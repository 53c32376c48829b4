"""The command line: validate, plan, run, watch, stacks, report, analyze, diff, export; on a cluster: status,
logs, watch, report, stacks, doctor.

`--help` imports typer alone, checks and plans pydantic; torch and Ray are imported by `run`, once the
job is valid, and torch by `export`. The only place outside `devices/` that reads the environment.
"""

import json
import os
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rljob_api.spec.exit_codes import MEANING, ExitCode
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_plan.machines import RATE_NAMES
from rljob_runtime.cli.cluster.cluster_commands import (
    Context,
    Namespace,
    logs,
    report_of_job,
    stacks_of_job,
    status,
)
from rljob_runtime.cli.doctor.doctor_command import doctor
from rljob_runtime.cli.watch_command import watch

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob

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


class ExportType(StrEnum):
    """Types that a model can be exported in."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Placements(StrEnum):
    """Placements that are looked into."""

    JOB = "job"
    COLOCATED = "colocated"
    SEPARATED = "separated"
    ANY = "any"


JobFile = Annotated[Path, typer.Argument(metavar="FILE", help="The RLJob, a YAML file.")]


@app.command()
def validate(file: JobFile) -> None:
    """Check a job and print every problem, each with its path; what holds for this machine alone, such as
    data or a package that is not here, is a note."""
    from rljob_api.check.cluster_rules import deadline_notes
    from rljob_api.check.evaluation_rules import evaluation_notes
    from rljob_api.check.load import load_job
    from rljob_api.spec.rljob import RLJob
    from rljob_api.topology.elastic import device_notes
    from rljob_plan.plan import model_problems

    try:
        job = load_job(file)
    except InvalidJob as invalid:
        told = {problem.path for problem in invalid.problems}
        read = invalid.job
        for note in _local_notes(read, file.parent) if isinstance(read, RLJob) else ():
            if note.path not in told:
                _note(f"on this machine: {note}")
        _invalid(invalid.problems)
    elsewhere = _local_notes(job, file.parent)
    problems: list[Problem] = []
    try:
        problems = model_problems(job, base_dir=file.parent)
    except InvalidJob as unreadable:  # the model may lie on another machine
        elsewhere += unreadable.problems
    notes = (device_notes, deadline_notes, evaluation_notes)
    for found in [*(note for tell in notes for note in tell(job.spec)), *_refusals(job)]:
        _note(str(found))
    for found in elsewhere:
        _note(f"on this machine: {found}")
    _refuse(problems)
    _print(f"{file}: {job.metadata.name} is valid")


@app.command()
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

    job = _load(file)
    if search:
        _search(job, file.parent, as_json, top or 5, placement, rate or [])
        return
    for option, value in (("--top", top), ("--placement", placement), ("--rate", rate)):
        if value is not None:
            _invalid([Problem(option, "has no use without --search; add --search or leave it out")])
    planned = make_plan(job, base_dir=file.parent)
    _print(json.dumps(plan_json(planned), indent=2) if as_json else plan_text(planned))
    _refuse(planned.problems)


def _search(
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

    asked: Any = placement.value if placement else "job"
    try:
        ranking, remedies = search_job(job, base_dir=folder, top=top, placements=asked, rates=rates)
    except InvalidJob as invalid:
        _invalid(invalid.problems)
    if as_json:
        _print(json.dumps(search_json(ranking, remedies), indent=2))
    else:
        _print(search_text(ranking, remedies))
    if not ranking.proposals:
        raise typer.Exit(ExitCode.INVALID)


@app.command()
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
    local: Annotated[
        bool, typer.Option("--local", help="Without Ray: as processes of this machine alone.")
    ] = False,
) -> None:
    """Train on this machine, on emulated devices."""
    from rljob_plan.plan import model_problems

    job = _load(file)
    try:
        _refuse([*_refusals(job), *model_problems(job, base_dir=file.parent)])
    except InvalidJob as unreadable:
        _invalid(unreadable.problems)
    from rljob_runtime.cli.local_problems import local_problems
    from rljob_runtime.errors import ConfigError, RljobError
    from rljob_runtime.run.launch import run_job
    from rljob_runtime.run.run_request import RunRequest

    ray_address = None if local else os.environ.get("RAY_ADDRESS")
    _refuse(local_problems(job, file.parent, alone=ray_address is None))
    # Some data sets iterate over sets: their items must not depend on the process that makes them.
    os.environ["PYTHONHASHSEED"] = "0"
    sockets = os.environ.get("RLJOB_DOCK_DIRECTORY")
    request = RunRequest(
        job=job,
        job_file=file,
        output=output,
        resume="yes" if resume else "if-any" if resume_if_any else "no",
        cache_dir=Path(os.environ.get("RLJOB_CACHE") or Path.home() / ".cache" / "rljob"),
        ray_address=ray_address,
        local=local,
        status=_status_endpoint(),
        dock_directory=Path(sockets) if sockets else None,
    )
    try:
        code = run_job(request)
    except ConfigError as error:
        _say(str(error))
        code = ExitCode.INVALID
    except RljobError as error:  # remote storage does not answer: another try may find it
        _say(str(error))
        code = ExitCode.FAILED
    raise typer.Exit(code)


@app.command()
def report(
    run: Annotated[
        str,
        typer.Argument(metavar="DIR|NAME", help="A run's folder, else an RLJob on the cluster."),
    ],
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
        _print(str(path))
        return
    if output:
        _say(f"{directory} is a folder: --output is for a run on a cluster; leave it out")
        raise typer.Exit(ExitCode.INVALID)
    if not (directory / "events.jsonl").is_file():
        _say(f"{directory} holds no events.jsonl; name the folder of a run")
        raise typer.Exit(ExitCode.INVALID)
    from rljob_runtime.report.display.report import write_report

    write_report(directory)
    _print(str(directory / "report.html"))


@app.command()
def stacks(
    run: Annotated[
        str,
        typer.Argument(metavar="DIR|NAME", help="A run's folder, else an RLJob on the cluster."),
    ],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write where each process of a run that lives stands now, and print who is missing."""
    directory = Path(run)
    if not directory.exists() and directory.name == run:
        _print(stacks_of_job(run, namespace=namespace, context=context).rstrip())
        return
    from rljob_runtime.errors import ConfigError, RljobError
    from rljob_runtime.record.hang_files import SUMMARY
    from rljob_runtime.run.hangs.request import ask_run

    try:
        found = ask_run(directory)
    except RljobError as error:
        _say(str(error))
        raise typer.Exit(
            ExitCode.INVALID if isinstance(error, ConfigError) else ExitCode.FAILED
        ) from None
    _print((found / SUMMARY).read_text().rstrip())
    _print(f"\n{found}")


@app.command()
def analyze(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Name what a run's steps wait for, what it costs, and the change of the job that would help."""
    from rich.console import Console

    from rljob_runtime.errors import ConfigError
    from rljob_runtime.report.analysis.analysis_text import analysis_json, analysis_tables
    from rljob_runtime.report.analysis.run import analyze_run

    try:
        found = analyze_run(run)
    except ConfigError as error:
        _say(str(error))
        raise typer.Exit(ExitCode.INVALID) from None
    if as_json:
        _print(json.dumps(analysis_json(found), indent=2))
    else:
        Console().print(*analysis_tables(found), sep="\n", highlight=False)


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run's folder.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another's.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write a page with both runs' curves overlaid."
        ),
    ] = None,
) -> None:
    """Compare two runs: their jobs, metrics, times and held-out accuracies."""
    from rich.console import Console

    from rljob_runtime.errors import ConfigError
    from rljob_runtime.report.display.run_diff import Run, diff_json, diff_runs, diff_tables

    try:
        found = diff_runs(Run.of(a), Run.of(b))
    except ConfigError as error:
        _say(str(error))
        raise typer.Exit(ExitCode.INVALID) from None
    if as_json:
        _print(json.dumps(diff_json(found), indent=2))
    else:
        Console().print(*diff_tables(found), sep="\n", highlight=False)
    if page:
        from rljob_runtime.report.display.overlay import render_overlay

        try:
            page.write_text(render_overlay(found), encoding="utf-8")
        except OSError as error:
            _say(f"--html: {error}")
            raise typer.Exit(ExitCode.INVALID) from None


@app.command()
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT", help="A run's folder, or one checkpoint in it."
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="A folder to be made.")],
    dtype: Annotated[
        ExportType | None, typer.Option(help="Type of the weights; default: as they were trained.")
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best", help="Of a run's best checkpoint (spec.checkpoint.keepBest)."),
    ] = False,
    adapter: Annotated[
        bool,
        typer.Option("--adapter", help="The adapters alone, in PEFT's format (spec.update.lora)."),
    ] = False,
) -> None:
    """Write the trained model as a Hugging Face directory, with its tokenizer, adapters merged."""
    import torch

    from rljob_runtime.errors import ConfigError, RljobError
    from rljob_runtime.models.export import export_adapter, export_model

    try:
        if adapter and dtype:
            raise ConfigError("--dtype is for merged weights; leave it or --adapter out")
        if adapter:
            _print(f"{target}: the adapters of {export_adapter(source, target, best=best)}")
            return
        of_type = getattr(torch, dtype) if dtype else None
        model = export_model(source, target, dtype=of_type, best=best)
    except RljobError as error:
        _say(str(error))
        raise typer.Exit(
            ExitCode.INVALID if isinstance(error, ConfigError) else ExitCode.FAILED
        ) from None
    _print(f"{target}: the model of {model}")


app.command()(watch)
app.command()(status)
app.command()(logs)
app.command()(doctor)


def main() -> None:
    """Entry point of `rljob`."""
    app()


def _status_endpoint() -> tuple[int, str] | None:
    """Where the operator asks for progress, as its pods say: a port, and the job's token."""
    port, token = os.environ.get("RLJOB_STATUS_PORT"), os.environ.get("RAY_AUTH_TOKEN")
    return (int(port), token) if port and token else None


def _load(file: Path) -> "RLJob":
    from rljob_api.check.load import load_job

    try:
        return load_job(file)
    except InvalidJob as invalid:
        _invalid(invalid.problems)


def _refusals(job: "RLJob") -> list[Problem]:
    from rljob_api.check.run_rules import refusals

    return refusals(job)


def _local_notes(job: "RLJob", folder: Path) -> list[Problem]:
    from rljob_runtime.cli.local_problems import local_problems

    return local_problems(job, folder, alone=False)


def _refuse(problems: Iterable[Problem]) -> None:
    if found := list(problems):
        _invalid(found)


def _invalid(problems: Iterable[Problem]) -> NoReturn:
    for problem in problems:
        _say(str(problem))
    raise typer.Exit(ExitCode.INVALID)


def _note(text: str) -> None:
    _say(f"note: {text}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
