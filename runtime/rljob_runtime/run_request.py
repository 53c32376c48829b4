"""What the command line asks for: the job, the run's folder, and what a resumed run must share.

Made by the CLI, carried out by `launch`.
"""

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from rljob_api.pod_names import driver_log
from rljob_api.rljob import CLUSTER_ONLY, RLJob
from rljob_api.topology import resolve
from rljob_runtime.errors import ConfigError

SPEC_NAME = "rljob.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What the CLI asks for. Paths in the job are relative to its file. ray_address: an existing
    cluster, or None to start Ray here. status: (port, token) of the status server, None without.
    dock_directory: where the dock's warehouses put their sockets, None: a folder of the run's own."""

    job: RLJob
    job_file: Path
    output: Path | None
    resume: bool
    cache_dir: Path
    ray_address: str | None
    status: tuple[int, str] | None = None
    dock_directory: Path | None = None

    @property
    def base_dir(self) -> Path:
        """Folder of the job's file."""
        return self.job_file.resolve().parent

    @property
    def shared_storage(self) -> bool:
        """Whether every process of the run sees the run's folder and the cache."""
        return self.ray_address is None or self.job.spec.checkpoint.storage is not None


def run_folder(request: RunRequest) -> Path:
    """The run's folder, made and filled with the resolved spec. Raises ConfigError."""
    name = request.job.metadata.name
    folder = request.output or Path("runs") / name
    if request.resume:
        if not (folder / "events.jsonl").exists():
            raise ConfigError(f"--resume: {folder} holds no run; leave --resume out to start one")
    elif folder.exists() and any(map(_is_of_a_run, folder.iterdir())):
        if request.output:
            raise ConfigError(
                f"--output {folder}: the folder holds a run already; add --resume to go on with "
                "it, or name another folder"
            )
        folder = folder.with_name(f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.mkdir(parents=True, exist_ok=True)
    resolved = resolve(request.job).model_dump(mode="json", by_alias=True, exclude_none=True)
    (folder / SPEC_NAME).write_text(yaml.safe_dump(resolved, sort_keys=False))
    return folder


def _is_of_a_run(path: Path) -> bool:
    """Whether the file tells of a run that began: its spec and the driver's output come before."""
    return path.name != SPEC_NAME and not path.match(driver_log("*"))


@contextlib.contextmanager
def dock_directory(request: RunRequest) -> Iterator[Path]:
    """The folder of the dock's sockets; one of the run's own is removed at the end."""
    if request.dock_directory is not None:
        yield request.dock_directory.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="rljob-dock-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def spec_digest(job: RLJob) -> str:
    """Digest of what a resumed run must share with the run that it goes on with. job: resolved."""
    free = {"steps", "checkpoint", "evaluation", "dock", *CLUSTER_ONLY}
    fields = job.spec.model_dump(mode="json", exclude=free)
    if job.spec.placement.mode == "separated":  # how many devices generate, and what follows
        del fields["placement"]["rollout_devices"]
        del fields["rollout"]["parallelism"]["data"]
        del fields["accelerator"]["nodes"]
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=8).hexdigest()
