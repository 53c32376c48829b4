"""Settings that are chosen at installation: each option once, with its default, its check and its help.

`arguments` reads them from the command line, which the chart's values write; nothing here depends on a job.
"""

import argparse
import ipaddress
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
SUBDOMAIN = rf"{LABEL}(\.{LABEL})*"
IMAGES = "images of a job's pods"
JOBS = "a job's pods and networks"
OPERATOR = "the operator itself"


def _matching(pattern: str, limit: int, kind: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if len(text) > limit or re.fullmatch(pattern, text) is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no {kind}")
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


def _integer(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if re.fullmatch(r"-?\d+", text) is None or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return int(text)

    return read


def _option(group: str, help: str, default: Any = MISSING, *, flag: str = "", **how: Any) -> Any:
    """Return a field with the arguments of its command-line option. flag: its name, if it differs from the
    field's."""
    return field(default=default, metadata={"group": group, "flag": flag, "help": help, **how})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator, in the order of its help. A repeated value counts once."""

    runtime_image: str = _option(IMAGES, "emulated devices", type=_image, metavar="IMAGE")
    ascend_image: str = _option(IMAGES, "Ascend devices", type=_image, metavar="IMAGE")
    ray_version: str = _option(
        IMAGES, "Ray's version in both images (%(default)s)", "2.60.0",
        type=_ray_version, metavar="X.Y.Z",
    )  # fmt: skip
    image_pull_secrets: tuple[str, ...] = _option(
        IMAGES, "secret of a registry in the job's namespace; may be repeated", (),
        flag="--image-pull-secret", type=_secret, metavar="NAME",
    )  # fmt: skip
    stop_seconds: int = _option(
        JOBS, "what a run that is told to stop may take for its checkpoint (%(default)s)", 600,
        type=_integer(1, 86_400), metavar="N",
    )  # fmt: skip
    unreachable_seconds: int = _option(
        JOBS, "how long a pod stays on a node that does not answer (%(default)s)", 5,
        type=_integer(0, 86_400), metavar="N",
    )  # fmt: skip
    emulated_device_plugin: bool = _option(
        JOBS, "nodes offer accelerator.resourceName for emulated devices too", False,
        action="store_true",
    )  # fmt: skip
    shared_memory: Literal["none", "host-path"] = _option(
        JOBS, "how pods of one node may share the dock's memory (%(default)s)", "none",
        choices=("none", "host-path"),
    )  # fmt: skip
    kueue: bool = _option(
        JOBS, "jobs of scheduler kueue are Workloads of Kueue themselves, not their RayClusters", False,
        action="store_true",
    )  # fmt: skip
    volcano: bool = _option(
        JOBS, "make the PodGroups of jobs of scheduler volcano, which KubeRay then must not", False,
        action="store_true",
    )  # fmt: skip
    network_policy: bool = _option(
        JOBS, "close a job's pods to everybody but themselves and the operator (yes)", True,
        action=argparse.BooleanOptionalAction,
    )  # fmt: skip
    egress_cidrs: tuple[str, ...] = _option(
        JOBS, "network that jobs may reach beside their own pods and DNS; may be repeated", (),
        flag="--egress-cidr", type=_cidr, metavar="CIDR",
    )  # fmt: skip
    metrics_namespace: str | None = _option(
        JOBS, "namespace whose pods may read Ray's metrics (none)", None,
        type=_namespace, metavar="NAME",
    )  # fmt: skip
    watch_namespaces: tuple[str, ...] = _option(
        OPERATOR, "watch this namespace alone; may be repeated (all)", (),
        flag="--namespace", type=_namespace, metavar="NAME",
    )  # fmt: skip
    faults_namespace: str | None = _option(
        OPERATOR, "namespace of MindCluster's reports of broken chips (none are read)", None,
        type=_namespace, metavar="NAME",
    )  # fmt: skip
    operator_namespace: str = _option(
        OPERATOR, "where the operator's pods and their lease are (%(default)s)", "rljob-system",
        type=_namespace, metavar="NAME",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Options that concern only the process."""

    workers: int = _option(
        OPERATOR, "jobs that are looked at at the same time (%(default)s)", 8,
        type=_integer(1, 256), metavar="N",
    )  # fmt: skip
    port: int = _option(
        OPERATOR, "of /healthz, /readyz and /metrics; 0 takes a free one (%(default)s)", 8080,
        type=_integer(0, 65_535), metavar="N",
    )  # fmt: skip
    log_level: Literal["DEBUG", "INFO", "WARNING"] = _option(
        OPERATOR, "least level (%(default)s)", "INFO", choices=("DEBUG", "INFO", "WARNING")
    )
