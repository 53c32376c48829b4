"""Provide the workers of one run: Ray on this machine, the cluster with the run's pods, or processes
without Ray.

Called by `launch`. Ray is imported only in runs that need it.
"""

import atexit
import contextlib
import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.topology.devices import total_devices
from rljob_api.topology.ray_resources import device_resource
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.processes.link import Link
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
class WorkerSession:
    """The workers of a run. workers: starts them. joined: called when new processes belong to the run,
    so that none of them survives it."""

    workers: Workers
    joined: Callable[[], None]


@contextlib.contextmanager
def worker_session(job: ResolvedJob, *, link: Link | None, logs: Path) -> Iterator[WorkerSession]:
    """Open the session of one run. link: the owner of its workers on Ray; None: processes without Ray,
    whose output goes to `logs`."""
    if link is None:
        start_forkserver()  # before the reaper, since it also serves later runs
        reaper = Reaper()
        try:
            with LocalWorkers(folder=logs) as workers:
                yield WorkerSession(workers=workers, joined=reaper.watch_descendants)
        finally:
            reaper.dismiss()
        return
    address, namespace, authentication = link.ask("open")
    os.environ |= authentication  # which Ray reads when it is imported
    from rljob_runtime.processes.on_ray import RayWorkers
    from rljob_runtime.processes.versions import connect

    try:
        with _sigterm_unchanged():
            connect(address=address, **_ray_options(namespace))
        accelerator = job.spec.accelerator
        actors = RayWorkers(
            per_node=accelerator.devices_per_node,
            resource=device_resource(accelerator),
            owner=link,
        )
        yield WorkerSession(workers=actors, joined=partial(link.ask, "watch"))
    finally:
        end_ray()


@contextlib.contextmanager
def ray_session(job: ResolvedJob, address: str | None) -> Iterator[tuple[Reaper, str]]:
    """Start Ray on this machine, or connect to the cluster at `address`, and end the connection in any
    case. Yields the reaper and the run's namespace."""
    from rljob_runtime.processes.local_ray import start_ray
    from rljob_runtime.processes.versions import check_nodes, connect

    namespace = f"rljob-{job.metadata.name}-{secrets.token_hex(4)}"
    options = _ray_options(namespace)
    reaper = Reaper()  # before Ray, whose processes it must end
    try:
        if address is None:
            devices = total_devices(job.spec.placement, job.spec.accelerator)
            with _sigterm_unchanged():
                start_ray(
                    resources={device_resource(job.spec.accelerator): devices},
                    object_store_memory=OBJECT_STORE_BYTES,
                    # By default Ray's workers run with low priority, and its server stores the states of
                    # 100,000 calls for a dashboard.
                    _system_config={"worker_niceness": 0, "task_events_report_interval_ms": 0},
                    **options,
                )
        else:
            with _sigterm_unchanged():
                connect(address=address, **options)
            check_nodes()
        reaper.watch_descendants()
        yield reaper, namespace
    finally:
        reaper.watch_descendants()  # including restarted actors
        if end_ray():
            reaper.dismiss()
        else:
            # The run's end is reported first: killing Ray also kills this process.
            atexit.register(reaper.dismiss)


@contextlib.contextmanager
def _sigterm_unchanged() -> Iterator[None]:
    """Restore the SIGTERM handler after `ray.init`, which makes SIGTERM end the process: here it
    requests the run to stop."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ray_options(namespace: str) -> dict[str, Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends no usage reports
    logging.getLogger("ray").setLevel(logging.ERROR)  # otherwise it logs its way of authentication
    return {"namespace": namespace, **QUIET}


def end_ray(seconds: float = SHUTDOWN_SECONDS) -> bool:
    """Call `ray.shutdown`, without waiting further if it hangs. Returns whether it ended."""
    import ray

    ending = threading.Thread(target=_shut_down, name="ray-shutdown", daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        atexit.unregister(ray.shutdown)  # it would wait for the hanging call
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
