"""Whether the kernels of nodes hide files from processes that run what a policy writes. Pure."""

from collections.abc import Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, name_of
from rljob_runtime.cli.doctor.devices import offers_of
from rljob_runtime.cli.doctor.findings import Finding, ok, seen, warn
from rljob_runtime.cli.doctor.installed import version_of
from rljob_runtime.cli.doctor.need import Need

HAVE_LANDLOCK = (5, 13)
SHOWN_NODES = 6


def kernels(facts: Facts, need: Need) -> Iterator[Finding]:
    """The kernel's version on each node that the job's worker pods may go to."""
    restricted = need.job.spec.restricted
    if not restricted:
        return
    fit = {offer.node for offer in offers_of(facts, need.resource, need) if not offer.unfit}
    versions = {name_of(node): _kernel(node) for node in seen(facts.nodes) if name_of(node) in fit}
    older = [
        f"{node} {kernel}"
        for node, kernel in sorted(versions.items())
        if (version := version_of(kernel)) is not None and version < HAVE_LANDLOCK
    ]
    what = f"{restricted[0]} and {len(restricted) - 1} more" if restricted[1:] else restricted[0]
    if older:
        shown = ", ".join(older[:SHOWN_NODES]) + (", …" if older[SHOWN_NODES:] else "")
        yield warn(
            f"{what}: a policy's text runs in processes that read what the job's user reads, as kernels "
            f"before 5.13 have no Landlock ({shown})",
            "keep Secrets out of the job's pods, or choose nodes with a newer kernel by "
            "accelerator.nodeSelector",
        )
    elif versions:
        yield ok(
            f"{what}: kernels of {len(versions)} nodes are from 5.13 on, and hide files from it"
        )


def _kernel(node: dict[str, object]) -> str:
    status = node.get("status")
    info = status.get("nodeInfo") if isinstance(status, dict) else None
    return str(info.get("kernelVersion", "")) if isinstance(info, dict) else ""
