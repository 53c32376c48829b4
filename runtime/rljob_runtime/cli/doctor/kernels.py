"""Whether the kernels of nodes can hide files from processes that run what a policy writes. Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, name_of
from rljob_runtime.cli.doctor.devices import count_of_nodes, offers_that_fit, some_of
from rljob_runtime.cli.doctor.findings import Finding, ok, seen, warn
from rljob_runtime.cli.doctor.installed import version_of
from rljob_runtime.cli.doctor.need import Need

HAVE_LANDLOCK = (5, 13)


def kernels(facts: Facts, need: Need) -> Iterator[Finding]:
    """The kernel's version on each node that the job's worker pods may go to. A newer one may lack Landlock,
    too: only a run there can tell, and does."""
    restricted = need.job.spec.restricted
    if not restricted:
        return
    fit = {offer.node for offer in offers_that_fit(facts, need)}
    versions = {name_of(node): _kernel(node) for node in seen(facts.nodes) if name_of(node) in fit}
    old = [
        f"{node} {kernel or 'of an unknown version'}"
        for node, kernel in sorted(versions.items())
        if (version_of(kernel) or (0, 0)) < HAVE_LANDLOCK
    ]
    what = some_of(restricted)
    if old:
        yield warn(
            f"{what}: a policy's text runs in processes that read what the job's user reads, as kernels "
            f"before 5.13 have no Landlock ({some_of(old)})",
            "keep Secrets out of the job's pods, or choose nodes with a newer kernel by "
            "accelerator.nodeSelector",
        )
    elif versions:
        nodes = count_of_nodes(len(versions))
        yield ok(f"{what}: the kernels of {nodes} have Landlock, unless they were built without")


def _kernel(node: Manifest) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get("kernelVersion", ""))
