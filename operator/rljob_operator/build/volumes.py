"""Volumes of a pod: the job, the run's folder, and the folder that its node's pods share.

Called by `pods`. The user's own volumes come after these.
"""

from rljob_api.spec.pods import PodTemplate
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.pod_names import (
    BRING_UP_FILE,
    CONFIG_DIRECTORY,
    DOCK_DIRECTORY,
    RUNS_DIRECTORY,
)
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import Manifest, Role, child_name
from rljob_operator.settings import Settings

CONFIG_VOLUME = "rljob-config"
RUNS_VOLUME = "rljob-runs"
DOCK_VOLUME = "rljob-dock"
NODE_FOLDER = "/dev/shm"
"""Folder of the node that every user can write, so the kubelet's subfolder for a job is open to the pods'
user. It holds only sockets; the memory itself is freed when the processes end."""


def shares_memory(spec: RLJobSpec, settings: Settings) -> bool:
    """Return whether the pods of one node get a shared folder."""
    return settings.shared_memory == "host-path" and spec.dock.shared_memory != "none"


def volumes(
    spec: RLJobSpec, user: PodTemplate, identity: JobIdentity, settings: Settings, *, role: Role
) -> list[Manifest]:
    """Return the pod's volumes."""
    result: list[Manifest] = []
    if role == "head":
        result.append({"name": CONFIG_VOLUME, **_config(spec, identity)})
    if role != "warehouse":
        result.append({"name": RUNS_VOLUME, **_runs(spec)})
    if role != "head" and shares_memory(spec, settings):
        result.append({"name": DOCK_VOLUME, "hostPath": {"path": NODE_FOLDER, "type": "Directory"}})
    user_volumes = [volume.model_dump(by_alias=True, exclude_none=True) for volume in user.volumes]
    return result + user_volumes


def mounts(
    spec: RLJobSpec, user: PodTemplate, identity: JobIdentity, settings: Settings, *, role: Role
) -> list[Manifest]:
    """Return the mounts of the volumes in the container. Of the node's folder it mounts only the job's
    subfolder."""
    result: list[Manifest] = []
    if role == "head":
        result.append({"name": CONFIG_VOLUME, "mountPath": CONFIG_DIRECTORY, "readOnly": True})
    if role != "warehouse":
        result.append({"name": RUNS_VOLUME, "mountPath": RUNS_DIRECTORY})
    if role != "head" and shares_memory(spec, settings):
        subfolder = f"rljob-{identity.uid}"
        result.append({"name": DOCK_VOLUME, "mountPath": DOCK_DIRECTORY, "subPath": subfolder})
    user_mounts = [
        mount.model_dump(by_alias=True, exclude_none=True) for mount in user.volume_mounts
    ]
    return result + user_mounts


def _config(spec: RLJobSpec, identity: JobIdentity) -> Manifest:
    """Return the volume with the job, and with the record of a bring-up if one is named."""
    job, record = {"name": child_name(identity)}, spec.accelerator.bring_up
    if record is None:
        return {"configMap": job}
    key = {"key": BRING_UP_FILE, "path": BRING_UP_FILE}
    return {
        "projected": {
            "sources": [{"configMap": job}, {"configMap": {"name": record, "items": [key]}}]
        }
    }


def _runs(spec: RLJobSpec) -> Manifest:
    storage = spec.checkpoint.storage
    if storage is None or storage.persistent_volume_claim is None:
        return {"emptyDir": {}}
    return {"persistentVolumeClaim": storage.persistent_volume_claim.model_dump(by_alias=True)}
