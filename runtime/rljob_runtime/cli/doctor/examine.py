"""All checks of facts, in the order in which they are printed. Pure."""

from collections.abc import Callable, Iterator

from rljob_api.topology.worker_pods import PULL_POLICY
from rljob_runtime.cli.doctor.cluster_facts import Facts, Unseen
from rljob_runtime.cli.doctor.control_plane import api_server, kuberay, operator, rljob_resource
from rljob_runtime.cli.doctor.devices import devices, placement
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, skipped, warn
from rljob_runtime.cli.doctor.need import ROLES, Need
from rljob_runtime.cli.doctor.rights import accepted, rights
from rljob_runtime.cli.doctor.storage import storage

SECRETS = "secrets"


def references(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """A line for each that is missing or could not be looked for; else one for all."""
    if need is None or not need.references:
        return
    there = []
    for reference, field in need.references.items():
        match facts.references.get(reference, Unseen("it was not asked for")):
            case Unseen(why):
                yield skipped(SECRETS, f"{reference} of {field}: {why}")
            case False:
                text = f"namespace {facts.namespace} has no {reference}, which {field} names"
                yield fail(SECRETS, text, "make it before the job, or name another")
            case _:
                there.append(str(reference))
    if there:
        yield ok(SECRETS, f"{', '.join(there)}: there")


IMAGES = "images"


def images(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """One image for all pods, with a tag that stands for one build."""
    if need is None:
        return
    given = dict.fromkeys(need.images[role] for role in ROLES)
    if "" in given:
        yield skipped(IMAGES, "the operator's image for jobs was not seen; --image names it")
        return
    named = ", ".join(given)
    if len(given) > 1:
        text = f"pods of the job have several images: {named}"
        yield warn(IMAGES, text, "use one: rljob, Ray and Python must be the same in all pods")
    for image in given:
        if _moves(image):
            text = f"{image} names no fixed build, and nodes pull it once ({PULL_POLICY})"
            yield warn(IMAGES, text, "name a tag of one build, or a digest")
    if len(given) == 1 and not any(map(_moves, given)):
        yield ok(IMAGES, f"{named}, pulled where a node has it not ({PULL_POLICY})")


def _moves(image: str) -> bool:
    """Whether the name may stand for another build tomorrow."""
    last = image.rpartition("/")[2]
    return "@" not in image and (":" not in last or last.endswith(":latest"))


Check = Callable[[Facts, Need | None], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    api_server,
    rljob_resource,
    operator,
    kuberay,
    rights,
    devices,
    placement,
    storage,
    references,
    images,
    accepted,
)


def examine(facts: Facts, need: Need | None) -> list[Finding]:
    """What all checks find; the first alone where the API server does not answer."""
    checks = CHECKS[:1] if isinstance(facts.version, Unseen) else CHECKS
    return [finding for check in checks for finding in check(facts, need)]
