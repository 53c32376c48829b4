"""The command line of `rljob-operator`: what whoever installs it decides, checked before anything starts.

Called by `main`. Every field of `Settings` has an option; the chart's values set them. A wrong value ends
the process with exit code 2 and a line that names option, value and what is right.
"""

import argparse
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from rljob_operator.settings import Settings

DESCRIPTION = "Runs RLJobs on Kubernetes: one process a replica, of which one at a time acts."
LOG_LEVELS: tuple[Literal["DEBUG", "INFO", "WARNING"], ...] = ("DEBUG", "INFO", "WARNING")
SHARED_MEMORY: tuple[Literal["none", "host-path"], ...] = ("none", "host-path")

DEFAULTS = Settings(runtime_image="", ascend_image="")  # with slots, the class itself knows none

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What concerns the process alone. workers: passes at the same time. port: of health and metrics."""

    workers: int
    port: int
    log_level: Literal["DEBUG", "INFO", "WARNING"]


def parse(arguments: Sequence[str]) -> tuple[Settings, ProcessOptions]:
    """Settings of the manifests, and options of the process. Exits where an argument is wrong."""
    given = _parser().parse_args(arguments)
    settings = Settings(
        runtime_image=given.runtime_image,
        ascend_image=given.ascend_image,
        ray_version=given.ray_version,
        operator_namespace=given.operator_namespace,
        watch_namespaces=tuple(dict.fromkeys(given.namespace)),
        image_pull_secrets=tuple(dict.fromkeys(given.image_pull_secret)),
        stop_seconds=given.stop_seconds,
        unreachable_seconds=given.unreachable_seconds,
        emulated_device_plugin=given.emulated_device_plugin,
        network_policy=given.network_policy,
        egress_cidrs=tuple(dict.fromkeys(given.egress_cidr)),
        metrics_namespace=given.metrics_namespace,
        shared_memory=given.shared_memory,
    )
    process = ProcessOptions(workers=given.workers, port=given.port, log_level=given.log_level)
    return settings, process


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rljob-operator", description=DESCRIPTION, allow_abbrev=False
    )
    told = f"%(prog)s {version('rljob')}"
    parser.add_argument("--version", action="version", version=told)
    _add_images(parser.add_argument_group("images of a job's pods"))
    _add_jobs(parser.add_argument_group("a job's pods and networks"))
    _add_process(parser.add_argument_group("the operator itself"))
    return parser


def _add_images(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--runtime-image", type=_image, required=True, metavar="IMAGE", help="emulated devices"
    )
    group.add_argument(
        "--ascend-image", type=_image, required=True, metavar="IMAGE", help="Ascend devices"
    )
    group.add_argument(
        "--ray-version",
        type=_ray_version,
        default=DEFAULTS.ray_version,
        metavar="X.Y.Z",
        help="Ray's version in both images (%(default)s)",
    )
    group.add_argument(
        "--image-pull-secret",
        type=_secret,
        action="append",
        default=[],
        metavar="NAME",
        help="secret of a registry in the job's namespace; may be repeated",
    )


def _add_jobs(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--stop-seconds",
        type=_whole(1, 86_400),
        default=DEFAULTS.stop_seconds,
        metavar="N",
        help="what a run that is told to stop may take for its checkpoint (%(default)s)",
    )
    group.add_argument(
        "--unreachable-seconds",
        type=_whole(0, 86_400),
        default=DEFAULTS.unreachable_seconds,
        metavar="N",
        help="how long a pod stays on a node that does not answer (%(default)s)",
    )
    group.add_argument(
        "--emulated-device-plugin",
        action="store_true",
        help="nodes offer accelerator.resourceName for emulated devices too",
    )
    group.add_argument(
        "--shared-memory",
        choices=SHARED_MEMORY,
        default=DEFAULTS.shared_memory,
        help="how pods of one node may share the dock's memory (%(default)s)",
    )
    group.add_argument(
        "--network-policy",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.network_policy,
        help="close a job's pods to everybody but themselves and the operator (yes)",
    )
    group.add_argument(
        "--egress-cidr",
        type=_cidr,
        action="append",
        default=[],
        metavar="CIDR",
        help="network that jobs may reach beside their own pods and DNS; may be repeated",
    )
    group.add_argument(
        "--metrics-namespace",
        type=_namespace,
        metavar="NAME",
        help="namespace whose pods may read Ray's metrics (none)",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--namespace",
        type=_namespace,
        action="append",
        default=[],
        metavar="NAME",
        help="watch this namespace alone; may be repeated (all)",
    )
    group.add_argument(
        "--operator-namespace",
        type=_namespace,
        default=DEFAULTS.operator_namespace,
        metavar="NAME",
        help="where the operator's pods and their lease are (%(default)s)",
    )
    group.add_argument(
        "--workers",
        type=_whole(1, 256),
        default=8,
        metavar="N",
        help="jobs that are looked at at the same time (%(default)s)",
    )
    group.add_argument(
        "--port",
        type=_whole(0, 65_535),
        default=8080,
        metavar="N",
        help="of /healthz, /readyz and /metrics; 0 takes a free one (%(default)s)",
    )
    group.add_argument(
        "--log-level", choices=LOG_LEVELS, default="INFO", help="least level (%(default)s)"
    )


def _matching(pattern: str, limit: int, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > limit or re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return text

    return read


_namespace = _matching(LABEL, 63, "name of a namespace (like team-a, at most 63 characters)")
_secret = _matching(SUBDOMAIN, 253, "name of a Secret (like registry-login)")
_image = _matching(r"[^\s,]+", 1024, "name of an image (like example.com/rljob/runtime:1.0)")
_ray_version = _matching(r"\d+\.\d+\.\d+\S*", 64, "version of Ray (like 2.60.0)")


def _cidr(text: str) -> str:
    try:
        if "/" in text:
            return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no network: {error}") from error
    raise argparse.ArgumentTypeError(f"{text!r} is no network (like 10.0.0.0/8)")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if re.fullmatch(r"-?\d+", text) is None or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read
