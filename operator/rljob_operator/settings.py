"""What whoever installs the operator decides; nothing here depends on a job.

`arguments` reads it once from the command line, and `main` hands it to whoever needs it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator.

    runtime_image: for emulated devices. ascend_image: for Ascend devices. ray_version: the one in
    both images. operator_namespace: where the operator's pods run. watch_namespaces: empty is all.
    stop_seconds: how long a run that was told to stop may take for its checkpoint.
    unreachable_seconds: how long a pod stays on a node that does not answer.
    emulated_device_plugin: whether nodes offer accelerator.resourceName for emulated devices too.
    egress_cidrs: networks that jobs may reach beside their own pods and DNS.
    metrics_namespace: whose pods may read the metrics of Ray and of drivers.
    shared_memory: how pods of a job on one node may share memory; host-path: in a folder of the node's.
    """

    runtime_image: str
    ascend_image: str
    ray_version: str = "2.60.0"
    operator_namespace: str = "rljob-system"
    watch_namespaces: tuple[str, ...] = ()
    image_pull_secrets: tuple[str, ...] = ()
    stop_seconds: int = 600
    unreachable_seconds: int = 30
    emulated_device_plugin: bool = False
    network_policy: bool = True
    egress_cidrs: tuple[str, ...] = ()
    metrics_namespace: str | None = None
    shared_memory: Literal["none", "host-path"] = "none"
