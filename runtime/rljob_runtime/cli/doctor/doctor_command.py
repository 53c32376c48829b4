"""The command `rljob doctor`. Called by `main`, whose `--help` must stay fast: functions import everything
but typer."""

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.cluster.cluster_commands import (
    Context,
    Namespace,
    console_of,
    open_cluster,
)
from rljob_runtime.cli.output import print_stderr

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rljob_api.spec.rljob import RLJob
    from rljob_runtime.cli.doctor.findings import Finding


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="An RLJob: whether the cluster has what it needs; a run's folder: whether it is whole.",
        ),
    ] = None,
    namespace: Namespace = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Make short-lived pods that look and talk; deleted again."),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="With --probe: pods, one a node; default: the job's."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="With --probe: image; default: that of the job's pods.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            min=1, max=86_400, metavar="SECONDS", help="With --probe: wait for pods; default: 180."
        ),
    ] = None,
    bring_up: Annotated[
        bool,
        typer.Option("--bring-up", help="Try this machine's devices in small, and record it."),
    ] = False,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="With --bring-up: emulated, ascend910b, ascend910c, ascend950 or cuda; default: what is "
            "visible.",
        ),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --bring-up: this check alone; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --bring-up: the record; default: bring-up.json, beside FILE if given."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    context: Context = None,
) -> None:
    """Check a cluster before a job, a run's folder, or this machine; exit code 1 if a check fails."""
    _refuse_unused({"--nodes": nodes, "--image": image, "--deadline": deadline}, "--probe", probe)
    _refuse_unused(
        {"--accelerator": accelerator, "--check": check, "--out": out}, "--bring-up", bring_up
    )
    if bring_up:
        _bring_up(file, accelerator, check or [], out, as_json)
    if file is not None and file.is_dir():
        _examine(file, as_json)
    job, manifest = _read(file) if file is not None else (None, None)
    if job is not None and namespace is None:
        namespace = job.metadata.namespace
    with open_cluster(namespace, context) as calls:
        from rljob_runtime.cli.doctor.diagnosis import diagnose
        from rljob_runtime.cli.doctor.probe.plan import Options

        probe_options = Options(
            token=secrets.token_hex(3), seconds=deadline or 180.0, nodes=nodes, image=image
        )
        findings = diagnose(calls, job, manifest, probe_options if probe else None)
    _print_findings(findings, as_json)


def _refuse_unused(options: "Mapping[str, object]", required_option: str, is_enabled: bool) -> None:
    for option, value in options.items():
        if value is not None and not is_enabled:
            print_stderr(
                f"{option} has no use without {required_option}; add {required_option} or leave it out"
            )
            raise typer.Exit(ExitCode.INVALID)


def _bring_up(
    file: Path | None,
    accelerator: str | None,
    check_names: list[str],
    out: Path | None,
    as_json: bool,
) -> NoReturn:
    """Run the bring-up of this machine. file: a job that names the device type; the record is written beside
    it."""
    from rljob_api.topology.pod_names import BRING_UP_FILE
    from rljob_runtime.cli.bring_up.bring_up_command import run_bring_up
    from rljob_runtime.cli.output import exit_on_error

    folder = Path()
    if file is not None:
        folder, (job, _) = file.parent, _read(file)
        accelerator = accelerator or job.spec.accelerator.type
    with exit_on_error():
        code = run_bring_up(
            accelerator=accelerator,
            check_names=check_names,
            out=out or folder / BRING_UP_FILE,
            as_json=as_json,
        )
    raise typer.Exit(code)


def _examine(folder: Path, as_json: bool) -> NoReturn:
    """Check the files of a run's folder or of one checkpoint."""
    from rljob_runtime.cli.doctor.run_folder import examine_run, is_run

    if not is_run(folder):
        print_stderr(
            f"{folder} holds no run and is no checkpoint; name a run's folder, or an RLJob's file"
        )
        raise typer.Exit(ExitCode.INVALID)
    _print_findings(examine_run(folder), as_json)


def _print_findings(findings: "Sequence[Finding]", as_json: bool) -> NoReturn:
    from rljob_runtime.cli.doctor.findings_text import any_fails, page
    from rljob_runtime.cli.doctor.findings_text import as_json as json_of

    if as_json:
        typer.echo(json.dumps(json_of(findings), indent=2))
    else:
        console_of().print(page(findings))
    raise typer.Exit(ExitCode.FAILED if any_fails(findings) else 0)


def _read(file: Path) -> "tuple[RLJob, dict[str, Any]]":
    """Return the job and its manifest as written; exit on problems."""
    from rljob_api.check.load import load_job
    from rljob_api.check.yaml_text import parse_yaml
    from rljob_api.spec.problems import InvalidJob

    try:
        return load_job(file), parse_yaml(file.read_text(encoding="utf-8"), name=str(file))
    except InvalidJob as invalid:
        for problem in invalid.problems:
            print_stderr(str(problem))
        raise typer.Exit(ExitCode.INVALID) from None
