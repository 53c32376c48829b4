"""The command `rljob doctor`. Started by `main`, whose `--help` must stay quick: everything but typer is
imported inside."""

import json
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.cluster.cluster_commands import (
    Context,
    Namespace,
    asked_cluster,
    console_of,
    say,
)

if TYPE_CHECKING:
    from rljob_api.spec.rljob import RLJob
    from rljob_runtime.cli.cluster.api_calls import Calls
    from rljob_runtime.cli.doctor.cluster_facts import Facts
    from rljob_runtime.cli.doctor.findings import Finding
    from rljob_runtime.cli.doctor.installed import Installed
    from rljob_runtime.cli.doctor.need import Need
    from rljob_runtime.cli.doctor.probe.plan import Options


def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="An RLJob: whether the cluster has what it needs."),
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    context: Context = None,
) -> None:
    """Check a cluster before a job; exit code 1 if a check fails."""
    for option, value in (("--nodes", nodes), ("--image", image), ("--deadline", deadline)):
        if value is not None and not probe:
            say(f"{option} has no use without --probe; add --probe or leave it out")
            raise typer.Exit(ExitCode.INVALID)
    job, manifest = _read(file) if file is not None else (None, None)
    if job is not None and namespace is None:
        namespace = job.metadata.namespace
    from rljob_runtime.cli.doctor.findings_text import any_fails, page
    from rljob_runtime.cli.doctor.findings_text import as_json as json_of

    with asked_cluster(namespace, context) as calls:
        from rljob_runtime.cli.doctor.probe.plan import Options

        asked = Options(
            token=secrets.token_hex(3), seconds=deadline or 180.0, nodes=nodes, image=image
        )
        findings = _examined(calls, job, manifest, asked if probe else None)
    if as_json:
        typer.echo(json.dumps(json_of(findings), indent=2))
    else:
        console_of().print(page(findings))
    raise typer.Exit(ExitCode.FAILED if any_fails(findings) else 0)


def _examined(
    calls: "Calls", job: "RLJob | None", manifest: dict[str, Any] | None, options: "Options | None"
) -> "list[Finding]":
    from rljob_runtime.cli.doctor.cluster_facts import Unseen
    from rljob_runtime.cli.doctor.examine import examine
    from rljob_runtime.cli.doctor.gather import gather
    from rljob_runtime.cli.doctor.installed import installed
    from rljob_runtime.cli.doctor.need import need_of, one_of, references_of

    facts = gather(calls, manifest, references_of(job) if job is not None else ())
    seen = () if isinstance(facts.operators, Unseen) else facts.operators
    operator = one_of(map(installed, seen), facts.namespace)
    need = need_of(job, operator) if job is not None else None
    findings = examine(facts, need)
    if options is not None and not isinstance(facts.version, Unseen):
        findings += _probed(calls, facts, need, operator, options, findings)
    return findings


def _probed(
    calls: "Calls",
    facts: "Facts",
    need: "Need | None",
    operator: "Installed | None",
    options: "Options",
    findings: "list[Finding]",
) -> "list[Finding]":
    """Say which pods are made, make them, and judge what they saw."""
    from rljob_api.topology.worker_pods import object_store_bytes
    from rljob_runtime.cli.doctor.findings import Status, fail, skipped
    from rljob_runtime.cli.doctor.probe.course import probe
    from rljob_runtime.cli.doctor.probe.judge import judge
    from rljob_runtime.cli.doctor.probe.plan import NoPlan, plan_of
    from rljob_runtime.cli.doctor.probe.pods import LATER_SECONDS
    from rljob_runtime.cli.doctor.rights import may_probe
    from rljob_runtime.errors import ClusterError

    if why := may_probe(facts):
        return [skipped("probe-pods", why)]
    if any(f.check == "placement" and f.status is Status.FAIL for f in findings):
        return [skipped("probe-pods", "the job's pods have no place (placement)")]
    try:
        plan = plan_of(facts, need, operator, options)
    except NoPlan as none:
        return [skipped("probe-pods", str(none))]
    lifetime = plan.seconds + LATER_SECONDS
    say(f"probe: makes {plan}; deletes them again, and each ends by itself after {lifetime:.0f} s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the pods go first
    try:
        seen = probe(plan, _means(calls))
    except ClusterError as error:
        return [fail("probe-pods", str(error), "see that the pods are gone: kubectl get pods")]
    return judge(plan, seen, store_bytes=object_store_bytes(ascend=plan.ascend))


def _means(calls: "Calls") -> Any:
    from rljob_runtime.cli.cluster.exec import run_remotely
    from rljob_runtime.cli.doctor.probe.course import Means
    from rljob_runtime.cli.doctor.probe.pods import CONTAINER

    def shell(pod: str, command: list[str]) -> tuple[int, bytes, str]:
        return run_remotely(calls, pod, command, what="the probe", container=CONTAINER)

    return Means(api=calls, shell=shell, tell=say)


def _read(file: Path) -> "tuple[RLJob, dict[str, Any]]":
    """The job, and its manifest as it is written."""
    from rljob_api.check.load import load_job
    from rljob_api.check.yaml_text import parse_yaml
    from rljob_api.spec.problems import InvalidJob

    try:
        return load_job(file), parse_yaml(file.read_text(encoding="utf-8"), name=str(file))
    except InvalidJob as invalid:
        for problem in invalid.problems:
            say(str(problem))
        raise typer.Exit(ExitCode.INVALID) from None
