"""The table of all checks of facts, in the order in which they are printed. Pure."""

from collections.abc import Callable, Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, Unseen
from rljob_runtime.cli.doctor.control_plane import (
    api_server,
    kuberay,
    operator,
    ray_resource,
    rljob_resource,
)
from rljob_runtime.cli.doctor.devices import devices, placement
from rljob_runtime.cli.doctor.findings import Finding, findings_of
from rljob_runtime.cli.doctor.kernels import kernels
from rljob_runtime.cli.doctor.need import Need
from rljob_runtime.cli.doctor.pulls import images, secrets, waiting
from rljob_runtime.cli.doctor.queue import queue
from rljob_runtime.cli.doctor.rights import accepted, rights
from rljob_runtime.cli.doctor.storage import storage

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
    "queue": with_job(queue),
    "kernels": with_job(kernels),
    "storage": storage,
    "secrets": secrets,
    "images": with_job(images),
    "image-pulls": with_job(waiting),
    "job": with_job(accepted),
}


def examine(facts: Facts, need: Need | None) -> list[Finding]:
    """What all checks find; the first alone where the API server does not answer."""
    first = {"api-server": api_server}
    return findings_of(first if isinstance(facts.version, Unseen) else CHECKS, facts, need)
