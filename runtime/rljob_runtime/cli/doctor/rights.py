"""What the user may do in the namespace, and what the API server says to the job. Pure."""

from collections.abc import Iterator

from rljob_api.spec.rljob import GROUP
from rljob_runtime.cli.doctor.cluster_facts import Facts, Right, Unseen
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, skipped, warn
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
    check = "rights"
    if isinstance(facts.rights, Unseen):
        yield skipped(check, facts.rights.why)
        return
    where = f"in namespace {facts.namespace}"
    role = f"the role edit {where}, with the chart's rbac.aggregate"
    if not facts.rights.get(MAKE_JOBS):
        yield fail(check, f"you may not {MAKE_JOBS} {where}", f"ask for {role}")
    lacking = [right for right in COMMANDS if not facts.rights.get(right)]
    for right in lacking:
        yield warn(
            check,
            f"you may not {right} {where}: {COMMANDS[right]} will not work",
            f"ask for {role}",
        )
    if facts.rights.get(MAKE_JOBS) and not lacking:
        yield ok(check, f"you may make jobs {where}, see their pods and logs, run commands in them")


def accepted(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """The API server takes the job: fields, rules, quotas, admission."""
    check = "job"
    if need is None:
        return
    name = need.job.metadata.name
    if isinstance(facts.verdict, Unseen):
        yield skipped(check, facts.verdict.why)
    elif not facts.verdict:
        yield ok(check, f"the API server takes {name} (dry run)")
    elif ALREADY_THERE in facts.verdict:
        text = f"namespace {facts.namespace} has an RLJob {name} already"
        yield warn(check, text, f"give the job another name, or kubectl delete rljob {name}")
    else:
        remedy = "change the job as the message says; rljob validate tells more"
        yield fail(check, f"the API server refuses {name}: {facts.verdict}", remedy)


def may_probe(facts: Facts) -> str:
    """Why no pods can be made for a probe; "" where they can."""
    if isinstance(facts.rights, Unseen):
        return facts.rights.why
    lacking = [str(right) for right in PROBE if not facts.rights.get(right)]
    return f"you may not {', '.join(lacking)} in namespace {facts.namespace}" if lacking else ""
