"""The request of the command line, and the settings that a resumed run must share.

The CLI creates a `RunRequest`; `launch` carries it out.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from rljob_api.spec.rljob import CLUSTER_ONLY, RLJob
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder, remove_abandoned
from rljob_runtime.errors import CheckpointDamaged
from rljob_runtime.processes.link import Link
from rljob_runtime.record.checkpoint import STATE_FILE, check_resumes, degrees_of, read_state
from rljob_runtime.record.checksums import check_files


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A request to train. Paths in the job are relative to its file. ray_address: an existing cluster, or
    None to start Ray here. local: without Ray. resume: `if-any` continues a run if there is one, else starts
    one. status: (port, token) of the status server, None without. dock_directory: where the dock's warehouses
    put their sockets, None: a folder of this run. base: what the job's paths are relative to, None: its
    file's folder. until: the step that the run ends after, None: the job's last. accept_changes: whether a
    run continues with files that differ from those it started with."""

    job: RLJob
    job_file: Path
    output: Path | None
    resume: Literal["no", "yes", "if-any"]
    cache_dir: Path
    ray_address: str | None
    local: bool = False
    status: tuple[int, str] | None = None
    dock_directory: Path | None = None
    base: Path | None = None
    until: int | None = None
    accept_changes: bool = False

    def packed(self) -> dict[str, Any]:
        """Return the fields for another process: models of an algorithm's parameters cannot be pickled."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {"job": self.job.model_dump_json(by_alias=True, exclude_unset=True)}

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> "RunRequest":
        """Return the request from the fields that `packed` returned."""
        return cls(**packed | {"job": RLJob.model_validate_json(packed["job"])})

    @property
    def base_dir(self) -> Path:
        """The folder that the job's paths are relative to."""
        return self.base or self.job_file.resolve().parent

    @property
    def shared_storage(self) -> bool:
        """Whether every process of the run sees the run's folder and the cache."""
        storage = self.job.spec.checkpoint.storage
        claimed = storage is not None and storage.persistent_volume_claim is not None
        return self.ray_address is None or claimed


@contextlib.contextmanager
def dock_directory(request: RunRequest, link: Link | None = None) -> Iterator[Path]:
    """Provide the folder of the dock's sockets; one that belongs to the run is removed at the end. Folders
    that killed runs left behind are removed first. link: to the process that owns the folder, None: this
    process."""
    remove_abandoned()
    if request.dock_directory is not None:
        yield request.dock_directory.absolute()
        return
    if link is not None:
        yield link.ask("own_folder", "dock")
        return
    with OwnedFolder("dock") as folder:
        yield folder.path


def spec_digest(job: ResolvedJob) -> str:
    """Return the digest of the settings that a resumed run must share with the run that it continues."""
    return _digest(_shared(job))


def course_digest(job: ResolvedJob) -> str:
    """Return the digest of those settings without devices and layouts, which do not affect what is
    learned."""
    fields = _course(job)
    for reward in fields["rewards"]:
        (reward.get("model") or {}).pop("parallelism", None)
    return _digest(fields)


def earlier_digests(job: ResolvedJob) -> set[str]:
    """Return the course digests of this job that earlier releases saved, with either placement. They depended
    on placements and on the layouts of a reward model."""
    return {_digest(_course(job) | {"placement": mode}) for mode in ("colocated", "separated")}


def check_goes_on(checkpoint: Path, job: ResolvedJob) -> None:
    """Raise CheckpointError if the job cannot resume from the checkpoint, before anything is started. Damage
    is left to the process that reads the checkpoint."""
    try:
        check_files(checkpoint, within=STATE_FILE)
    except CheckpointDamaged:
        return
    check_resumes(
        checkpoint,
        read_state(checkpoint),
        spec_digest=spec_digest(job),
        course_digests={course_digest(job), *earlier_digests(job)},
        degrees=degrees_of(job.spec),
    )


def _course(job: ResolvedJob) -> dict[str, Any]:
    fields = _shared(job)
    for name in ("accelerator", "resharding", "placement"):
        fields.pop(name, None)
    for name in ("micro_batch_size", "micro_batch_tokens"):  # they follow from the number of ranks
        fields["batch"].pop(name, None)
    for model in ("update", "rollout", "critic", "teacher"):
        (fields.get(model) or {}).pop("parallelism", None)
    return fields


def _shared(job: ResolvedJob) -> dict[str, Any]:
    may_change = {
        "steps",
        "checkpoint",
        "evaluation",
        "guards",
        "stragglers",
        "elastic",
        "profile",
        "tracking",
        "dock",
    }
    fields = job.spec.model_dump(mode="json", exclude={*may_change, *CLUSTER_ONLY})
    for name in ("recompute", "offload", "redundancy"):  # change no bit
        del fields["update"][name]
    fields["resharding"].pop("deltas")
    for name in ("bring_up", "accept_untested", "spare_nodes"):  # excluded if they are unset
        fields["accelerator"].pop(name, None)
    if job.spec.flow.partial_rollout is None:  # a job without it keeps its digest
        del fields["flow"]["partial_rollout"]
    if job.spec.placement.mode == "separated":  # how many devices generate, and what follows
        del fields["placement"]["rollout_devices"]
        del fields["rollout"]["parallelism"]["data"]
        del fields["accelerator"]["nodes"]
    return fields


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()
