"""What the job runs on and stores: devices, the transfer dock, checkpoints."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.pods import ClaimVolume, Labels, Name, SubPath
from rljob_api.spec.section import Quantity, Section

_NAME = "[A-Za-z0-9_][-A-Za-z0-9_.]*"
URI_PATTERN = rf"^(s3://[a-z0-9][-a-z0-9.]+|file:///{_NAME})(/{_NAME})*$"
"""A folder of a bucket or of this machine; it cannot contain a password."""


class Accelerator(Section):
    """The devices of the job."""

    type: Literal["emulated", "ascend910b", "ascend910c", "ascend950"] = "emulated"
    """`emulated`: processes on CPU, each with a memory ledger instead of a device's memory."""

    nodes: int | None = Field(default=None, ge=1, le=10_000)
    """Number of nodes; default: 1. Not read if placement sets how many devices train and how many generate:
    the number of nodes then follows from these."""

    devices_per_node: int = Field(default=1, ge=1, le=64)
    """Devices of each node."""

    spare_nodes: int = Field(default=0, ge=0, le=1000, exclude_if=lambda spares: not spares)
    """On a cluster: additional nodes, whose pods are started and wait. The devices of a lost node move to one
    immediately, and the pod that replaces the lost one is the next spare. Not read by `rljob run` on one
    machine."""

    memory: Quantity | None = None
    """Memory of one device; default: 64Gi on Ascend, 128Gi of ascend950, no limit on emulated devices."""

    resource_name: str = Field(
        default="huawei.com/Ascend910",
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
    )
    """On a cluster: resource of the device plugin that each node's pod requests; for ascend950,
    huawei.com/npu replaces the default."""

    injection: Literal["runtime", "hostPath", "dra"] = "runtime"
    """On a cluster, how Ascend devices and their driver are mounted into a pod: `runtime` by the Ascend
    container runtime, `hostPath` by mounting the node's driver, `dra` by a resource claim of the device class
    npu.huawei.com (Kubernetes 1.34)."""

    node_selector: Annotated[Labels, Field(max_length=32)] = Field(default_factory=dict)
    """On a cluster: labels that the devices' nodes must have, e.g. accelerator-type."""

    bring_up: Name | None = Field(default=None, exclude_if=lambda name: name is None)
    """On a cluster: ConfigMap with the key bring-up.json, the report that `rljob doctor --bring-up` wrote on
    a node with these devices. `rljob run` reads the file of that name next to the job."""

    accept_untested: bool = Field(default=False, exclude_if=lambda accepts: not accepts)
    """Whether the job runs on Ascend devices without a passed bring-up of their type and versions."""


class Dock(Section):
    """The distributed transfer dock: warehouses hold samples, controllers their metadata."""

    warehouses: int | None = Field(default=None, ge=1, le=10_000)
    """Number of warehouses (the paper's S); default: one per node, with `separated` one per node that trains,
    since those stay. On a cluster no node has more than one pod for them; a pod holds several if there are
    more warehouses than such nodes."""

    capacity: Quantity = "1Gi"
    """Bytes that each warehouse may hold; a quarter is kept free for what states write, so producers wait
    when three quarters are full. With replicas 2 it may also hold as many bytes of another one."""

    replicas: int = Field(default=1, ge=1, le=2)
    """Warehouses that hold each row. 2: a lost warehouse is restored with its rows and no step is repeated;
    each then also holds another one's rows, so it needs twice the memory. Needs two warehouses or more, on a
    cluster two nodes or more with as many on each."""

    lease_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """A claim that is neither acknowledged nor renewed for this long is returned to other consumers."""

    full_timeout_seconds: float = Field(default=300.0, gt=0, le=86_400)
    """A producer that waits this long for space fails, and the error names the state that is stuck."""

    shared_memory: Literal["auto", "required", "none"] = "auto"
    """Whether workers read rows in the memory of warehouses on their own machine. `auto`: if they can reach
    its socket, else over TCP; `required`: fail if they cannot; `none`: TCP."""


class RemoteStorage(Section):
    """A folder outside of the machines that train, to which checkpoints are copied."""

    uri: str = Field(max_length=1024, pattern=URI_PATTERN)
    """The folder: `s3://BUCKET/PREFIX` on S3 or what speaks like it, `file:///PATH` on a disk that
    every machine mounts."""

    secret_name: Name | None = None
    """On a cluster: Secret whose keys become variables of the head's environment, such as AWS_ACCESS_KEY_ID
    and AWS_SECRET_ACCESS_KEY. On one machine they are read from its own environment."""

    endpoint: str | None = Field(
        default=None, max_length=512, pattern=r"^https?://[-A-Za-z0-9.:\[\]]+(/[-A-Za-z0-9_./]*)?$"
    )
    """URL of the S3 service, if it is not Amazon's."""

    timeout_seconds: float = Field(default=1800.0, gt=0, le=86_400)
    """A copy that takes longer is aborted; the next checkpoint tries again."""


class Storage(Section):
    """Where checkpoints outlive the pods: exactly one of `persistentVolumeClaim` and `remote`."""

    persistent_volume_claim: ClaimVolume | None = None
    """On a cluster: a volume that holds the run's folder and that all pods of the job may write
    (ReadWriteMany, if nodes is above 1)."""

    remote: RemoteStorage | None = None
    """Copies of the checkpoints on object storage; the run's folder stays local. Also on one machine."""

    path: SubPath | None = None
    """Folder within the volume or the URI; default: a separate one for the run. If it holds checkpoints, the
    run resumes from the newest."""


class Checkpoint(Section):
    """What is saved and when."""

    every: int | None = Field(default=None, ge=1)
    """Save after every so many steps; the last step is always saved."""

    keep: int = Field(default=2, ge=1, le=1000)
    """Number of checkpoints that are kept."""

    keep_best: bool = Field(default=False, exclude_if=lambda keep: not keep)
    """Save after each evaluation that is the best so far by evaluation.metric, and keep that checkpoint in
    addition to the last ones; `rljob export --best` writes its model."""

    storage: Storage | None = None
    """Where checkpoints outlive the pods; without it, a job on a cluster that loses its head starts again."""
