"""What a pod sees of the outside: the job, the run's folder, the folder where its node's pods meet.

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
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import Manifest, Role, child_name
from rljob_operator.settings import Settings

CONFIG_VOLUME = "rljob-config"
RUNS_VOLUME = "rljob-runs"
DOCK_VOLUME = "rljob-dock"
NODE_FOLDER = "/dev/shm"
"""Of the node: a folder for everybody, so that the one which the kubelet makes in it for a job is open to the
pods' user. Only sockets lie there; the memory itself goes when the processes go."""


def shares_memory(spec: RLJobSpec, settings: Settings) -> bool:
    """Whether the pods of one node get a folder in common."""
    return settings.shared_memory == "host-path" and spec.dock.shared_memory != "none"


def volumes(
    spec: RLJobSpec, own: PodTemplate, identity: Identity, settings: Settings, *, role: Role
) -> list[Manifest]:
    """The pod's volumes."""
    found: list[Manifest] = []
    if role == "head":
        found.append({"name": CONFIG_VOLUME, **_config(spec, identity)})
    if role != "warehouse":
        found.append({"name": RUNS_VOLUME, **_runs(spec)})
    if role != "head" and shares_memory(spec, settings):
        found.append({"name": DOCK_VOLUME, "hostPath": {"path": NODE_FOLDER, "type": "Directory"}})
    given = [volume.model_dump(by_alias=True, exclude_none=True) for volume in own.volumes]
    return found + given


def mounts(
    spec: RLJobSpec, own: PodTemplate, identity: Identity, settings: Settings, *, role: Role
) -> list[Manifest]:
    """Where the container finds them. Of the node's folder it sees the job's own part alone."""
    found: list[Manifest] = []
    if role == "head":
        found.append({"name": CONFIG_VOLUME, "mountPath": CONFIG_DIRECTORY, "readOnly": True})
    if role != "warehouse":
        found.append({"name": RUNS_VOLUME, "mountPath": RUNS_DIRECTORY})
    if role != "head" and shares_memory(spec, settings):
        part = f"rljob-{identity.uid}"
        found.append({"name": DOCK_VOLUME, "mountPath": DOCK_DIRECTORY, "subPath": part})
    given = [mount.model_dump(by_alias=True, exclude_none=True) for mount in own.volume_mounts]
    return found + given


def _config(spec: RLJobSpec, identity: Identity) -> Manifest:
    """The job, and beside it the record of a bring-up where one is named."""
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
