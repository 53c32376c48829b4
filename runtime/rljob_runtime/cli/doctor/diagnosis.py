"""All findings of `rljob doctor`: asks the cluster, lets the checks look, and makes the probe's pods."""

import signal
from dataclasses import replace

from rljob_api.spec.rljob import RLJob
from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.exec import run_remotely
from rljob_runtime.cli.doctor.cluster_facts import Manifest, Unseen
from rljob_runtime.cli.doctor.examine import examine
from rljob_runtime.cli.doctor.findings import Finding, Skip, Status, fail, skipped
from rljob_runtime.cli.doctor.gather import gather
from rljob_runtime.cli.doctor.need import need_of, operator_of
from rljob_runtime.cli.doctor.probe.course import Means, probe
from rljob_runtime.cli.doctor.probe.judge import judge
from rljob_runtime.cli.doctor.probe.plan import Options, Plan, plan_of
from rljob_runtime.cli.doctor.probe.pods import CONTAINER, LATER_SECONDS
from rljob_runtime.cli.doctor.rights import look_for_probe_rights
from rljob_runtime.cli.output import say
from rljob_runtime.errors import ClusterError


def diagnose(
    calls: Calls, job: RLJob | None, manifest: Manifest | None, options: Options | None
) -> list[Finding]:
    """Of the cluster, with the job on it where there is one. options: of the probe, None without one."""
    facts = gather(calls, job, manifest)
    operator = operator_of(facts.operators, facts.namespace)
    need = need_of(job, operator) if job is not None else None
    findings = examine(facts, need)
    if options is None or isinstance(facts.version, Unseen):
        return findings
    try:
        look_for_probe_rights(facts)
        if any(f.check == "placement" and f.status is Status.FAIL for f in findings):
            raise Skip("the job's pods have no place (placement)")
        plan = plan_of(facts, need, operator, options)
        return findings + _probed(calls, plan)
    except Skip as skip:
        line = skipped(str(skip))
    except ClusterError as error:
        line = fail(str(error), "see that the pods are gone: kubectl get pods")
    return [*findings, replace(line, check="probe-pods")]


def _probed(calls: Calls, plan: Plan) -> list[Finding]:
    """Say which pods are made, make them, and judge what they saw."""

    def shell(pod: str, command: list[str]) -> tuple[int, bytes, str]:
        return run_remotely(calls, pod, command, what="the probe", container=CONTAINER)

    lifetime = plan.seconds + LATER_SECONDS
    say(f"probe: makes {plan}; deletes them again, and each ends by itself after {lifetime:.0f} s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the pods go first
    return judge(plan, probe(plan, Means(api=calls, shell=shell, tell=say)))
