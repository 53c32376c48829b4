"""Check the user's rights in the namespace, and the API server's verdict on the job. Pure."""

from collections.abc import Iterator

from rljob_api.spec.rljob import GROUP
from rljob_runtime.cli.doctor.cluster_facts import Facts, Right
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, require, warn
from rljob_runtime.cli.doctor.need import Need

CREATE_JOBS = Right(verb="create", resource="rljobs", group=GROUP)
COMMANDS = {
    Right(verb="get", resource="rljobs", group=GROUP): "rljob status NAME",
    Right(verb="list", resource="rljobs", group=GROUP): "rljob status",
    Right(verb="list", resource="pods"): "rljob status, logs, watch",
    Right(verb="get", resource="pods/log"): "rljob logs",
    Right(verb="get", resource="pods/exec"): "rljob report, watch, stacks",
    Right(verb="create", resource="pods/exec"): "rljob report, watch, stacks",
}
"""The commands that need each right."""
PROBE_RIGHTS = (
    Right(verb="create", resource="pods"),
    Right(verb="list", resource="pods"),
    Right(verb="delete", resource="pods"),
    Right(verb="get", resource="pods/exec"),
    Right(verb="create", resource="pods/exec"),
)
CHECKED_RIGHTS = tuple(dict.fromkeys((CREATE_JOBS, *COMMANDS, *PROBE_RIGHTS)))
ALREADY_THERE = ": 409 "


def rights(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """Check that the user may create jobs and read their pods and logs."""
    allowed = require(facts.rights)
    scope = f"in namespace {facts.namespace}"
    remedy = f"ask for the role edit {scope}, which the chart's rbac.users and rbac.aggregate add RLJobs to"
    if not allowed.get(CREATE_JOBS):
        yield fail(f"you may not {CREATE_JOBS} {scope}", remedy)
    missing = [right for right in COMMANDS if not allowed.get(right)]
    for right in missing:
        yield warn(f"you may not {right} {scope}: {COMMANDS[right]} will not work", remedy)
    if allowed.get(CREATE_JOBS) and not missing:
        yield ok(f"you may make jobs {scope}, see their pods and logs, run commands in them")


def admission(facts: Facts, need: Need) -> Iterator[Finding]:
    """Check that the API server accepts the job: fields, rules, quotas, admission."""
    name, verdict = need.job.metadata.name, require(facts.verdict)
    if not verdict:
        yield ok(f"the API server takes {name} (dry run)")
    elif ALREADY_THERE in verdict:
        text = f"namespace {facts.namespace} has an RLJob {name} already"
        yield warn(text, f"give the job another name, or kubectl delete rljob {name}")
    else:
        remedy = "change the job as the message says; rljob validate tells more"
        yield fail(f"the API server refuses {name}: {verdict}", remedy)


def require_probe_rights(facts: Facts) -> None:
    """Raise Skip where the user may not create pods for a probe."""
    allowed = require(facts.rights)
    if missing := [str(right) for right in PROBE_RIGHTS if not allowed.get(right)]:
        raise Skip(f"you may not {', '.join(missing)} in namespace {facts.namespace}")
