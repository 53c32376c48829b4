"""The table of all checks of facts, in the order in which they are printed. Pure."""

from collections.abc import Callable, Iterator

from rljob_api.topology.worker_pods import PULL_POLICY
from rljob_runtime.cli.doctor.cluster_facts import Facts, Unseen
from rljob_runtime.cli.doctor.control_plane import (
    api_server,
    kuberay,
    operator,
    ray_resource,
    rljob_resource,
)
from rljob_runtime.cli.doctor.devices import devices, placement
from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, findings_of, ok, skipped, warn
from rljob_runtime.cli.doctor.need import ROLES, Need
from rljob_runtime.cli.doctor.rights import accepted, rights
from rljob_runtime.cli.doctor.storage import storage


def references(facts: Facts, need: Need) -> Iterator[Finding]:
    """A line for each that is missing or could not be looked for; else one for all."""
    there = []
    for reference, field in need.references.items():
        match facts.references.get(reference, Unseen("it was not asked for")):
            case Unseen(why):
                yield skipped(f"{reference} of {field}: {why}")
            case False:
                text = f"namespace {facts.namespace} has no {reference}, which {field} names"
                yield fail(text, "make it before the job, or name another")
            case _:
                there.append(str(reference))
    if there:
        yield ok(f"{', '.join(there)}: there")


def images(facts: Facts, need: Need) -> Iterator[Finding]:
    """One image for all pods, with a tag that stands for one build."""
    given = dict.fromkeys(need.images[role] for role in ROLES)
    if "" in given:
        raise Skip("the operator's image for jobs was not seen; --image names it")
    named = ", ".join(given)
    if len(given) > 1:
        text = f"pods of the job have several images: {named}"
        yield warn(text, "use one: rljob, Ray and Python must be the same in all pods")
    for image in given:
        if _moves(image):
            text = f"{image} names no fixed build, and nodes pull it once ({PULL_POLICY})"
            yield warn(text, "name a tag of one build, or a digest")
    if len(given) == 1 and not any(map(_moves, given)):
        yield ok(f"{named}, pulled where a node has it not ({PULL_POLICY})")


def _moves(image: str) -> bool:
    """Whether the name may stand for another build tomorrow."""
    last = image.rpartition("/")[2]
    return "@" not in image and (":" not in last or last.endswith(":latest"))


Check = Callable[[Facts, Need | None], Iterator[Finding]]


def with_job(check: Callable[[Facts, Need], Iterator[Finding]]) -> Check:
    """A check that has nothing to say without a job."""
    return lambda facts, need: iter(()) if need is None else check(facts, need)


CHECKS: dict[str, Check] = {
    "api-server": api_server,
    "rljob-crd": rljob_resource,
    "operator": operator,
    "raycluster-crd": ray_resource,
    "kuberay": kuberay,
    "rights": rights,
    "devices": devices,
    "placement": with_job(placement),
    "storage": storage,
    "secrets": with_job(references),
    "images": with_job(images),
    "job": with_job(accepted),
}


def examine(facts: Facts, need: Need | None) -> list[Finding]:
    """What all checks find; the first alone where the API server does not answer."""
    first = {"api-server": api_server}
    return findings_of(first if isinstance(facts.version, Unseen) else CHECKS, facts, need)
