"""Check whether nodes' kernels can restrict the files of processes that run a policy's output. Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Manifest, name_of
from rljob_runtime.cli.doctor.devices import count_of_nodes, first_nodes, offers_that_fit
from rljob_runtime.cli.doctor.findings import Finding, ok, require, warn
from rljob_runtime.cli.doctor.installed import version_of
from rljob_runtime.cli.doctor.need import Need

MIN_KERNEL = (5, 13)


def kernels(facts: Facts, need: Need) -> Iterator[Finding]:
    """Check the kernel version of each node on which the job's worker pods may run. A newer kernel may also
    lack Landlock; only a run on it detects that."""
    restricted = need.job.spec.restricted
    if not restricted:
        return
    fitting = {offer.node for offer in offers_that_fit(facts, need)}
    versions = {
        name_of(node): _kernel(node) for node in require(facts.nodes) if name_of(node) in fitting
    }
    outdated = [
        f"{node} {kernel or 'of an unknown version'}"
        for node, kernel in sorted(versions.items())
        if (version_of(kernel) or (0, 0)) < MIN_KERNEL
    ]
    settings = first_nodes(restricted)
    if outdated:
        yield warn(
            f"{settings}: a policy's text runs in processes that read what the job's user reads, as kernels "
            f"before 5.13 have no Landlock ({first_nodes(outdated)})",
            "keep Secrets out of the job's pods, or choose nodes with a newer kernel by "
            "accelerator.nodeSelector",
        )
    elif versions:
        nodes = count_of_nodes(len(versions))
        yield ok(
            f"{settings}: the kernels of {nodes} have Landlock, unless they were built without"
        )


def _kernel(node: Manifest) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get("kernelVersion", ""))
