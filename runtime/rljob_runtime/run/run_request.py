"""What the command line asks for, and what a resumed run must share.

Made by the CLI, carried out by `launch`.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rljob_api.spec.rljob import CLUSTER_ONLY, RLJob
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.children.owned_folders import OwnedFolder, remove_abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the CLI asks for. Paths in the job are relative to its file. ray_address: an existing
    cluster, or None to start Ray here. local: without Ray. resume: `if-any`
    goes on where there is a run, else begins one. status: (port, token) of the status server, None without.
    dock_directory: where the dock's warehouses put their sockets, None: a folder of the run's own."""

    job: RLJob
    job_file: Path
    output: Path | None
    resume: Literal["no", "yes", "if-any"]
    cache_dir: Path
    ray_address: str | None
    local: bool = False
    status: tuple[int, str] | None = None
    dock_directory: Path | None = None

    @property
    def base_dir(self) -> Path:
        """Folder of the job's file."""
        return self.job_file.resolve().parent

    @property
    def shared_storage(self) -> bool:
        """Whether every process of the run sees the run's folder and the cache."""
        storage = self.job.spec.checkpoint.storage
        claimed = storage is not None and storage.persistent_volume_claim is not None
        return self.ray_address is None or claimed


@contextlib.contextmanager
def dock_directory(request: RunRequest) -> Iterator[Path]:
    """The folder of the dock's sockets; one of the run's own is removed at the end. Before, those that killed
    runs have left."""
    remove_abandoned()
    if request.dock_directory is not None:
        yield request.dock_directory.absolute()
        return
    with OwnedFolder("dock") as folder:
        yield folder.path


def spec_digest(job: ResolvedJob) -> str:
    """Digest of what a resumed run must share with the run that it goes on with."""
    free = {"steps", "checkpoint", "evaluation", "guards", "profile", "tracking", "dock"}
    fields = job.spec.model_dump(mode="json", exclude={*free, *CLUSTER_ONLY})
    for name in ("recompute", "offload"):  # change no bit
        del fields["update"][name]
    if job.spec.flow.partial_rollout is None:  # a job that says nothing of it keeps its digest
        del fields["flow"]["partial_rollout"]
    if job.spec.placement.mode == "separated":  # how many devices generate, and what follows
        del fields["placement"]["rollout_devices"]
        del fields["rollout"]["parallelism"]["data"]
        del fields["accelerator"]["nodes"]
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()
