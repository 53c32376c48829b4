"""Rules on podTemplates: what Kubernetes or KubeRay would refuse long after the job was accepted.

Pure functions from a spec to problems, called by `load`. The names and paths that the operator uses in a pod
are listed here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from posixpath import normpath

from rljob_api.check.rules import Rule
from rljob_api.spec.pods import EnvironmentVariable, PodTemplate, Resources, Volume, parse_amount
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.pod_names import CONFIG_DIRECTORY, DOCK_DIRECTORY, RUNS_DIRECTORY
from rljob_api.topology.worker_pods import DRIVER_PATHS, device_resource_name, is_ascend

KEY_PATTERN = (
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
OWN_KEYS = ("ray.io/", "rljob.io/", "app.kubernetes.io/")
"""Prefixes of labels and annotations that KubeRay and the operator use to select their pods."""
OWN_ENVIRONMENT = (
    "ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "FQ_RAY_IP", "RAY_ADDRESS",
    "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_CLOUD_INSTANCE_ID", "RAY_CLUSTER_NAME",
    "RAY_CLUSTER_NAMESPACE", "RAY_IP", "RAY_NODE_TYPE_NAME", "RAY_PORT", "RAY_REDIS_ADDRESS",
    "REDIS_PASSWORD", "REDIS_USERNAME",
)  # fmt: skip
OWN_PATHS = (CONFIG_DIRECTORY, RUNS_DIRECTORY, DOCK_DIRECTORY, "/dev/shm")
OWN_VOLUMES = ("rljob-", "shared-mem")

Templates = Iterator[tuple[str, PodTemplate]]


def resources_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require requests within limits. Devices are counted only in spec.accelerator."""
    resource = device_resource_name(spec.accelerator)
    for path, template in _templates(spec):
        resources = template.resources or Resources()
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            yield from key_problems(f"{path}.resources.{kind}", amounts)
            if resource in amounts:
                yield Problem(
                    f"{path}.resources.{kind}[{resource}]",
                    "is set by spec.accelerator.devicesPerNode; leave it out",
                )
        for name in resources.requests.keys() & resources.limits.keys():
            request, most = resources.requests[name], resources.limits[name]
            if parse_amount(request) > parse_amount(most):
                yield Problem(
                    f"{path}.resources.requests[{name}]",
                    f"is {request}, above the limit {most}; lower it or raise limits",
                )


def metadata_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require keys that Kubernetes accepts and that do not belong to the operator."""
    for path, template in _templates(spec):
        yield from key_problems(f"{path}.nodeSelector", template.node_selector)
        for kind, entries in (("labels", template.labels), ("annotations", template.annotations)):
            yield from key_problems(f"{path}.{kind}", entries)
            for key in entries:
                if key.startswith(OWN_KEYS):
                    yield Problem(
                        f"{path}.{kind}[{key}]",
                        f"belongs to the operator, as all of {', '.join(OWN_KEYS)}; use another key",
                    )


def toleration_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require tolerations that Kubernetes accepts."""
    for path, template in _templates(spec):
        for index, toleration in enumerate(template.tolerations):
            toleration_path = f"{path}.tolerations[{index}]"
            if toleration.operator == "Exists" and toleration.value:
                yield Problem(
                    f"{toleration_path}.value",
                    "has no use with operator Exists; leave it out or use Equal",
                )
            if toleration.key is None and toleration.operator == "Equal":
                yield Problem(
                    f"{toleration_path}.key", "is missing; operator Equal needs it; or use Exists"
                )
            if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
                yield Problem(
                    f"{toleration_path}.tolerationSeconds",
                    "needs effect: NoExecute; set it or leave this out",
                )


def environment_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require variables with one value each, which neither KubeRay nor the device plugin sets."""
    for path, template in _templates(spec):
        yield from _repeated(f"{path}.env", [variable.name for variable in template.env])
        for index, variable in enumerate(template.env):
            yield from _variable(f"{path}.env[{index}]", variable)


def volume_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require volumes with one source each, mounted on unused paths."""
    for path, template in _templates(spec):
        names = [volume.name for volume in template.volumes]
        yield from _repeated(f"{path}.volumes", names)
        for index, volume in enumerate(template.volumes):
            yield from _volume(f"{path}.volumes[{index}]", volume)
        own_paths = [*OWN_PATHS, *(DRIVER_PATHS if _mounts_drivers(spec) else ())]
        mount_paths = [normpath(mount.mount_path) for mount in template.volume_mounts]
        yield from _repeated(f"{path}.volumeMounts", mount_paths)
        for index, (mount, mount_path) in enumerate(
            zip(template.volume_mounts, mount_paths, strict=True)
        ):
            field_path = f"{path}.volumeMounts[{index}]"
            if mount.name not in names:
                known = f"use one of {', '.join(names)}" if names else "add it to volumes"
                yield Problem(
                    f"{field_path}.name", f"is {mount.name!r}, which volumes lacks; {known}"
                )
            if any(
                mount_path == own_path or _inside(mount_path, own_path) for own_path in own_paths
            ):
                yield Problem(
                    f"{field_path}.mountPath",
                    f"is {mount.mount_path!r}, which the operator uses; use a path outside of "
                    f"{', '.join(own_paths)}",
                )


def key_problems(path: str, entries: Mapping[str, object]) -> Iterator[Problem]:
    """Yield keys that are not qualified names of Kubernetes."""
    for key in entries:
        if not re.fullmatch(KEY_PATTERN, key):
            yield Problem(
                f"{path}[{key}]",
                f"{key!r} is no key of Kubernetes; write name or domain/name of letters, digits, "
                "'-', '_' and '.'",
            )


def _variable(path: str, variable: EnvironmentVariable) -> Iterator[Problem]:
    if variable.name in OWN_ENVIRONMENT:
        yield Problem(
            f"{path}.name", f"{variable.name} is set by the cluster; leave the variable out"
        )
    yield from _one_of(path, {"value": variable.value, "valueFrom": variable.value_from})
    if (source := variable.value_from) is not None:
        sources = {
            "secretKeyRef": source.secret_key_ref,
            "configMapKeyRef": source.config_map_key_ref,
        }
        yield from _one_of(f"{path}.valueFrom", sources)


def _volume(path: str, volume: Volume) -> Iterator[Problem]:
    if volume.name.startswith(OWN_VOLUMES):
        yield Problem(
            f"{path}.name", f"is {volume.name!r}, a name that the operator uses; rename the volume"
        )
    sources = {
        "configMap": volume.config_map,
        "secret": volume.secret,
        "persistentVolumeClaim": volume.persistent_volume_claim,
        "emptyDir": volume.empty_dir,
    }
    yield from _one_of(path, sources)


def _one_of(path: str, members: Mapping[str, object]) -> Iterator[Problem]:
    present = [name for name, value in members.items() if value is not None]
    if len(present) != 1:
        description = " and ".join(present) if present else "none of them"
        yield Problem(path, f"has {description}; give exactly one of {', '.join(members)}")


def _repeated(path: str, names: list[str]) -> Iterator[Problem]:
    for name, times in Counter(names).items():
        if times > 1:
            yield Problem(path, f"has {name!r} {times} times; keep one")


def _mounts_drivers(spec: RLJobSpec) -> bool:
    """Return whether worker pods mount the node's driver at its path on the node."""
    return is_ascend(spec.accelerator) and spec.accelerator.injection == "hostPath"


def _inside(path: str, directory: str) -> bool:
    return path.startswith(f"{directory}/")


def _templates(spec: RLJobSpec) -> Templates:
    templates = spec.pod_templates
    for role in ("head", "worker", "warehouse"):
        template = getattr(templates, role)
        if template is not None:
            yield f"spec.podTemplates.{role}", template


POD_RULES: tuple[Rule, ...] = (
    resources_rule,
    metadata_rule,
    toleration_rule,
    environment_rule,
    volume_rule,
)
