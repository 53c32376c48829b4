"""The table of all checks of a cluster's facts, in the order of the output. Pure."""

from collections.abc import Callable, Iterator

from rljob_runtime.cli.doctor.cluster_facts import Facts, UnreadableFact
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
from rljob_runtime.cli.doctor.pulls import image_pulls, images, secrets
from rljob_runtime.cli.doctor.queue import queue
from rljob_runtime.cli.doctor.rights import admission, rights
from rljob_runtime.cli.doctor.storage import storage

Check = Callable[[Facts, Need | None], Iterator[Finding]]


def with_job(check: Callable[[Facts, Need], Iterator[Finding]]) -> Check:
    """Wrap a check so that it yields nothing without a job."""
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
    "image-pulls": with_job(image_pulls),
    "job": with_job(admission),
}


def examine(facts: Facts, need: Need | None) -> list[Finding]:
    """Return the findings of all checks; those of the first check alone where the API server does not
    answer."""
    first = {"api-server": api_server}
    return findings_of(first if isinstance(facts.version, UnreadableFact) else CHECKS, facts, need)
