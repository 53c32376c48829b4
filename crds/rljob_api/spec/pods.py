"""What a user may change in the job's pods on a cluster: a narrow subset of Kubernetes' own pod.

There is no field for a host path, a privilege or a host namespace, so no job can request one.
"""

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from rljob_api.spec.section import QUANTITY_UNITS, Quantity, Section

AMOUNT_PATTERN = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
MAX_ITEMS = 32

Name = Annotated[
    str,
    Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Path = Annotated[str, Field(min_length=2, max_length=512, pattern=r"^/[^:]*[^:/]$")]
SubPath = Annotated[
    str,
    Field(max_length=512, pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_.]*(/[A-Za-z0-9_][-A-Za-z0-9_.]*)*$"),
]
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE_PATTERN)]
Labels = dict[str, LabelValue]


def parse_amount(text: str) -> Decimal:
    """Return the number of a Kubernetes quantity such as ``250m``, ``4`` or ``1.5Gi``. Raises ValueError."""
    if re.fullmatch(AMOUNT_PATTERN, text) is None:
        raise ValueError(f"is {text!r}; must be an amount such as 4, 500m or 16Gi")
    number = text.rstrip("mkMGTi")
    unit = text.removeprefix(number)
    return Decimal(number) * (Decimal("0.001") if unit == "m" else QUANTITY_UNITS[unit])


def _amount(value: Any) -> Any:
    """Accept whole numbers without quotes, as Kubernetes does."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        parse_amount(text)
    return text


Amount = Annotated[
    str,
    BeforeValidator(_amount),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "pattern": AMOUNT_PATTERN}),
]
Amounts = Annotated[dict[str, Amount], Field(max_length=16)]


class Resources(Section):
    """What the pod's container requests; devices follow from spec.accelerator."""

    requests: Amounts = Field(default_factory=dict)
    """What the scheduler reserves, by resource, e.g. {cpu: 8, memory: 64Gi}."""

    limits: Amounts = Field(default_factory=dict)
    """What the container may use at most."""


class Toleration(Section):
    """A taint of nodes that the pod tolerates."""

    key: str | None = Field(default=None, min_length=1, max_length=317)
    """Key of the taint; without it every taint."""

    operator: Literal["Equal", "Exists"] = "Equal"
    """`Equal` compares the value, `Exists` does not."""

    value: str | None = Field(default=None, max_length=63)
    """Value of the taint."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; without it every effect."""

    toleration_seconds: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """For NoExecute: seconds until the pod leaves; without it never."""


class KeyReference(Section):
    """One key of a Secret or ConfigMap in the job's namespace."""

    name: Name
    """Name of the object."""

    key: DataKey
    """Key in it."""


class ValueFrom(Section):
    """Where a variable's value is stored: exactly one of both."""

    secret_key_ref: KeyReference | None = None
    """In a Secret."""

    config_map_key_ref: KeyReference | None = None
    """In a ConfigMap."""


class EnvironmentVariable(Section):
    """A variable of the container: exactly one of `value` and `valueFrom`."""

    name: str = Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of the variable."""

    value: str | None = Field(default=None, max_length=4096)
    """Its value; secrets belong into a Secret."""

    value_from: ValueFrom | None = None
    """Where its value is stored."""


class ConfigMapVolume(Section):
    """The files of a ConfigMap."""

    name: Name
    """Name of the ConfigMap."""


class SecretVolume(Section):
    """The files of a Secret."""

    secret_name: Name
    """Name of the Secret."""


class ClaimVolume(Section):
    """A persistent volume of the namespace."""

    claim_name: Name
    """Name of the PersistentVolumeClaim."""


class EmptyDirectoryVolume(Section):
    """Space on the node that is freed with the pod."""

    medium: Literal["", "Memory"] = ""
    """`Memory` keeps it in the pod's memory."""

    size_limit: Quantity | None = None
    """Most bytes."""


class Volume(Section):
    """A volume of the pod: exactly one source."""

    name: str = Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    """Name that volumeMounts use."""

    config_map: ConfigMapVolume | None = None
    """The files of a ConfigMap."""

    secret: SecretVolume | None = None
    """The files of a Secret."""

    persistent_volume_claim: ClaimVolume | None = None
    """A persistent volume."""

    empty_dir: EmptyDirectoryVolume | None = None
    """Space on the node that is freed with the pod."""


class VolumeMount(Section):
    """Where a volume appears in the container."""

    name: str = Field(min_length=1, max_length=63)
    """Name of the volume."""

    mount_path: Path
    """Absolute path in the container."""

    sub_path: SubPath | None = None
    """Path within the volume."""

    read_only: bool = False
    """Whether the container only reads it."""


class SecretName(Section):
    """A Secret of the namespace, by name."""

    name: Name
    """Name of the Secret."""


class PodTemplate(Section):
    """What differs from the operator's own pods of this role."""

    image: Image | None = None
    """Image of this role; default: spec.image."""

    resources: Resources | None = None
    """What the container requests; an amount given here replaces the operator's own."""

    node_selector: Annotated[Labels, Field(max_length=MAX_ITEMS)] = Field(default_factory=dict)
    """Labels that the node must have."""

    tolerations: list[Toleration] = Field(default_factory=list, max_length=MAX_ITEMS)
    """Taints of nodes that the pod tolerates, in addition to the operator's own."""

    env: list[EnvironmentVariable] = Field(default_factory=list, max_length=64)
    """Variables of the container; they replace the operator's own of the same name."""

    labels: Annotated[Labels, Field(max_length=MAX_ITEMS)] = Field(default_factory=dict)
    """Labels of the pod."""

    annotations: Annotated[
        dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=MAX_ITEMS)
    ] = Field(default_factory=dict)
    """Annotations of the pod."""

    priority_class_name: Name | None = None
    """PriorityClass of the pod; default: scheduling.priorityClass."""

    service_account_name: Name | None = None
    """ServiceAccount whose token the pod gets; by default it gets none."""

    image_pull_secrets: list[SecretName] = Field(default_factory=list, max_length=8)
    """Secrets for the image's registry."""

    volumes: list[Volume] = Field(default_factory=list, max_length=MAX_ITEMS)
    """Volumes of the pod."""

    volume_mounts: list[VolumeMount] = Field(default_factory=list, max_length=MAX_ITEMS)
    """Where they appear in the container."""


class PodTemplates(Section):
    """On a cluster: what differs from the operator's own pods, by role."""

    head: PodTemplate | None = None
    """The pod of Ray's head and the driver; it has no devices."""

    worker: PodTemplate | None = None
    """The pods with the devices, one per node."""

    warehouse: PodTemplate | None = None
    """The pods of the dock's warehouses, each on the node of a worker, whose tolerations they share."""
