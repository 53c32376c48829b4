"""The images of the job's pods, as far as names tell; a probe shows whether nodes can pull them. Pure."""

from collections.abc import Iterator

from rljob_api.topology.worker_pods import PULL_POLICY
from rljob_runtime.cli.doctor.cluster_facts import Facts
from rljob_runtime.cli.doctor.findings import Finding, ok, skipped, warn
from rljob_runtime.cli.doctor.need import ROLES, Need

CHECK = "images"


def images(facts: Facts, need: Need | None) -> Iterator[Finding]:
    """One image for all pods, with a tag that stands for one build."""
    if need is None:
        return
    given = dict.fromkeys(need.images[role] for role in ROLES)
    if "" in given:
        yield skipped(CHECK, "the operator's image for jobs was not seen; --image names it")
        return
    named = ", ".join(given)
    if len(given) > 1:
        text = f"pods of the job have several images: {named}"
        yield warn(CHECK, text, "use one: rljob, Ray and Python must be the same in all pods")
    for image in given:
        if _moves(image):
            text = f"{image} names no fixed build, and nodes pull it once ({PULL_POLICY})"
            yield warn(CHECK, text, "name a tag of one build, or a digest")
    if len(given) == 1 and not any(map(_moves, given)):
        yield ok(CHECK, f"{named}, pulled where a node has it not ({PULL_POLICY})")


def _moves(image: str) -> bool:
    """Whether the name may stand for another build tomorrow."""
    last = image.rpartition("/")[2]
    return "@" not in image and (":" not in last or last.endswith(":latest"))
