"""What the user may do in the namespace, and what the API server says to the job. Pure."""

from collections.abc import Iterator

from rljob_api.spec.rljob import GROUP
from rljob_runtime.cli.doctor.cluster_facts import Facts, Right
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, seen, warn
from rljob_runtime.cli.doctor.need import Need

MAKE_JOBS = Right(verb="create", resource="rljobs", group=GROUP)
COMMANDS = {
    Right(verb="get", resource="rljobs", group=GROUP): "rljob status NAME",
    Right(verb="list", resource="rljobs", group=GROUP): "rljob status",
    Right(verb="list", resource="pods"): "rljob status, logs, watch",
    Right(verb="get", resource="pods/log"): "rljob logs",
    Right(verb="get", resource="pods/exec"): "rljob report, watch, stacks",
    Right(verb="create", resource="pods/exec"): "rljob report, watch, stacks",
}
"""Which commands need a right."""
PROBE = (
    Right(verb="create", resource="pods"),
    Right(verb="list", resource="pods"),
    Right(verb="delete", resource="pods"),
    Right(verb="get", resource="pods/exec"),
    Right(verb="create", resource="pods/exec"),
)
ASKED = tuple(dict.fromkeys((MAKE_JOBS, *COMMANDS, *PROBE)))
ALREADY_THERE = ": 409 "


def rights(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """The user may make jobs, and see their pods and logs."""
    given = seen(facts.rights)
    where = f"in namespace {facts.namespace}"
    remedy = f"ask for the role edit {where}, which the chart's rbac.users and rbac.aggregate add RLJobs to"
    if not given.get(MAKE_JOBS):
        yield fail(f"you may not {MAKE_JOBS} {where}", remedy)
    lacking = [right for right in COMMANDS if not given.get(right)]
    for right in lacking:
        yield warn(f"you may not {right} {where}: {COMMANDS[right]} will not work", remedy)
    if given.get(MAKE_JOBS) and not lacking:
        yield ok(f"you may make jobs {where}, see their pods and logs, run commands in them")


def accepted(facts: Facts, need: Need) -> Iterator[Finding]:
    """The API server takes the job: fields, rules, quotas, admission."""
    name, verdict = need.job.metadata.name, seen(facts.verdict)
    if not verdict:
        yield ok(f"the API server takes {name} (dry run)")
    elif ALREADY_THERE in verdict:
        text = f"namespace {facts.namespace} has an RLJob {name} already"
        yield warn(text, f"give the job another name, or kubectl delete rljob {name}")
    else:
        remedy = "change the job as the message says; rljob validate tells more"
        yield fail(f"the API server refuses {name}: {verdict}", remedy)


def look_for_probe_rights(facts: Facts) -> None:
    """Raises Skip where no pods can be made for a probe."""
    given = seen(facts.rights)
    if lacking := [str(right) for right in PROBE if not given.get(right)]:
        raise Skip(f"you may not {', '.join(lacking)} in namespace {facts.namespace}")
