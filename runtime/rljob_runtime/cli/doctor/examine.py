"""All checks of facts, in the order in which they are printed. Pure."""

from collections.abc import Callable, Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Unseen
from rljob_runtime.cli.doctor.control_plane import api_server, kuberay, operator, rljob_resource
from rljob_runtime.cli.doctor.devices import devices, placement
from rljob_runtime.cli.doctor.findings import Finding
from rljob_runtime.cli.doctor.images import images
from rljob_runtime.cli.doctor.need import Need
from rljob_runtime.cli.doctor.references import references
from rljob_runtime.cli.doctor.rights import accepted, rights
from rljob_runtime.cli.doctor.storage import storage

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
