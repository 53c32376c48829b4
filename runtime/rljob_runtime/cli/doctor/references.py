"""Secrets and ConfigMaps that a job names: its pods wait for one that is missing. Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Unseen
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, skipped
from rljob_runtime.cli.doctor.need import Need

CHECK = "secrets"


def references(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """A line for each that is missing or could not be looked for; else one for all."""
    if need is None or not need.references:
        return
    there = []
    for reference, field in need.references.items():
        match facts.references.get(reference, Unseen("it was not asked for")):
            case Unseen(why):
                yield skipped(CHECK, f"{reference} of {field}: {why}")
            case False:
                text = f"namespace {facts.namespace} has no {reference}, which {field} names"
                yield fail(CHECK, text, "make it before the job, or name another")
            case _:
                there.append(str(reference))
    if there:
        yield ok(CHECK, f"{', '.join(there)}: there")
