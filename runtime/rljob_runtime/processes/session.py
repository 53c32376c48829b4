"""Where the workers of one run are: Ray on this machine, the cluster where the run's pods are, or processes
without Ray.

Called by `launch`. Ray is imported by runs that need it.
"""

import atexit
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_api.topology.devices import total_devices
from rljob_api.topology.ray_resources import device_resource
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.processes.local_workers import LocalWorkers, start_forkserver
from rljob_runtime.processes.reaper import Reaper
from rljob_runtime.processes.workers import Workers

OBJECT_STORE_BYTES = 128 * 2**20
SHUTDOWN_SECONDS = 60.0
QUIET: dict[str, Any] = {
    "log_to_driver": False,
    "logging_level": "error",
    "configure_logging": False,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """workers: where those of the run are started. reaper: ends what is left of them."""

    workers: Workers
    reaper: Reaper


@contextlib.contextmanager
def worker_session(
    job: ResolvedJob, *, local: bool, ray_address: str | None, logs: Path
) -> Iterator[Session]:
    """For one run. local: processes without Ray, which write what they say into `logs`; else Ray, see
    `ray_session`."""
    if local:
        start_forkserver()  # before the reaper, as it serves later runs, too
        reaper = Reaper()
        try:
            with LocalWorkers(folder=logs) as workers:
                yield Session(workers=workers, reaper=reaper)
        finally:
            reaper.dismiss()
        return
    from rljob_runtime.processes.on_ray import RayWorkers

    with ray_session(job, ray_address) as reaper:
        accelerator = job.spec.accelerator
        actors = RayWorkers(
            per_node=accelerator.devices_per_node, resource=device_resource(accelerator)
        )
        yield Session(workers=actors, reaper=reaper)


@contextlib.contextmanager
def ray_session(job: ResolvedJob, address: str | None) -> Iterator[Reaper]:
    """Ray on this machine, or the cluster at `address`; ended whatever happens."""
    from rljob_runtime.processes.local_ray import start_ray
    from rljob_runtime.processes.versions import check_nodes, connect

    namespace = f"rljob-{job.metadata.name}-{secrets.token_hex(4)}"
    options: dict[str, Any] = {"namespace": namespace, **QUIET}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run reports to nobody unasked
    logging.getLogger("ray").setLevel(logging.ERROR)  # it greets with its way of authentication
    reaper = Reaper()  # before Ray: what it starts is to be ended
    try:
        if address is None:
            devices = total_devices(job.spec.placement, job.spec.accelerator)
            start_ray(
                resources={device_resource(job.spec.accelerator): devices},
                object_store_memory=OBJECT_STORE_BYTES,
                # By default Ray's workers give way to everything else on the machine, and its server keeps
                # what became of 100,000 calls for a dashboard.
                _system_config={"worker_niceness": 0, "task_events_report_interval_ms": 0},
                **options,
            )
        else:
            connect(address=address, **options)
            check_nodes()
        reaper.watch_descendants()
        yield reaper
    finally:
        reaper.watch_descendants()  # actors that were started again, too
        if end_ray():
            reaper.dismiss()
        else:
            # The run's end is told first: Ray takes this process along when it is killed.
            atexit.register(reaper.dismiss)


def end_ray(seconds: float = SHUTDOWN_SECONDS) -> bool:
    """`ray.shutdown`, left to itself where it hangs; whether it ended."""
    import ray

    ending = threading.Thread(target=_shut_down, name="ray-shutdown", daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        atexit.unregister(ray.shutdown)  # it would wait for the one that hangs
        log.warning(
            "ray.shutdown did not end within %g s; Ray is killed when the run ends", seconds
        )
        return False
    return True


def _shut_down() -> None:
    import ray

    try:
        ray.shutdown()
    except Exception as error:
        log.warning("ray.shutdown failed: %s: %s", type(error).__name__, error)
