"""Collect all findings of `rljob doctor`: query the cluster, run the checks, and run the probe."""

import signal
from dataclasses import replace

from rljob_api.spec.rljob import RLJob
from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.exec import run_remotely
from rljob_runtime.cli.doctor.cluster_facts import Manifest, UnreadableFact
from rljob_runtime.cli.doctor.examine import examine
from rljob_runtime.cli.doctor.findings import Finding, Skip, Status, fail, skipped
from rljob_runtime.cli.doctor.gather import gather
from rljob_runtime.cli.doctor.need import need_of, operator_of
from rljob_runtime.cli.doctor.probe.course import ProbeIO, probe
from rljob_runtime.cli.doctor.probe.judge import judge
from rljob_runtime.cli.doctor.probe.plan import Options, ProbePlan, plan_of
from rljob_runtime.cli.doctor.probe.pods import CONTAINER, EXTRA_LIFETIME_SECONDS
from rljob_runtime.cli.doctor.rights import require_probe_rights
from rljob_runtime.cli.output import print_stderr
from rljob_runtime.errors import ClusterError


def diagnose(
    calls: Calls, job: RLJob | None, manifest: Manifest | None, options: Options | None
) -> list[Finding]:
    """Return the findings about the cluster, and about the job if given. options: None runs no probe."""
    facts = gather(calls, job, manifest)
    operator = operator_of(facts.operators, facts.namespace)
    need = need_of(job, operator) if job is not None else None
    findings = examine(facts, need)
    if options is None or isinstance(facts.version, UnreadableFact):
        return findings
    try:
        require_probe_rights(facts)
        if any(f.check == "placement" and f.status is Status.FAIL for f in findings):
            raise Skip("the job's pods have no place (placement)")
        plan = plan_of(facts, need, operator, options)
        return findings + _run_probe(calls, plan)
    except Skip as skip:
        finding = skipped(str(skip))
    except ClusterError as error:
        finding = fail(str(error), "see that the pods are gone: kubectl get pods")
    return [*findings, replace(finding, check="probe-pods")]


def _run_probe(calls: Calls, plan: ProbePlan) -> list[Finding]:
    """Announce the pods of the probe, run it, and return its findings."""

    def shell(pod: str, command: list[str]) -> tuple[int, bytes, str]:
        return run_remotely(calls, pod, command, label="the probe", container=CONTAINER)

    lifetime = plan.seconds + EXTRA_LIFETIME_SECONDS
    print_stderr(
        f"probe: makes {plan}; deletes them again, and each ends by itself after {lifetime:.0f} s"
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the pods are deleted first
    return judge(plan, probe(plan, ProbeIO(api=calls, shell=shell, report=print_stderr)))
