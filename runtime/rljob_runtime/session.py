"""Ray for the time of one run: on this machine, or the cluster where the run's pods are.

Called by `launch`.
"""

import atexit
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import ray

from rljob_api.ray_resources import device_resource
from rljob_api.rljob import RLJob
from rljob_api.topology import total_devices
from rljob_runtime.guardian import Guardian
from rljob_runtime.local_ray import start_ray
from rljob_runtime.versions import check_nodes, connect

OBJECT_STORE_BYTES = 128 * 2**20
SHUTDOWN_SECONDS = 60.0
QUIET: dict[str, Any] = {
    "log_to_driver": False,
    "logging_level": "error",
    "configure_logging": False,
}

log = logging.getLogger(__name__)


@contextlib.contextmanager
def ray_session(job: RLJob, address: str | None) -> Iterator[Guardian]:
    """Ray on this machine, or the cluster at `address`; ended whatever happens."""
    namespace = f"rljob-{job.metadata.name}-{secrets.token_hex(4)}"
    options: dict[str, Any] = {"namespace": namespace, **QUIET}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run reports to nobody unasked
    logging.getLogger("ray").setLevel(logging.ERROR)  # it greets with its way of authentication
    guardian = Guardian()  # before Ray: what it starts is to be ended
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
        guardian.watch_descendants()
        yield guardian
    finally:
        guardian.watch_descendants()  # actors that were started again, too
        if end_ray():
            guardian.dismiss()
        else:
            # The run's end is told first: Ray takes this process along when it is killed.
            atexit.register(guardian.dismiss)


def end_ray(seconds: float = SHUTDOWN_SECONDS) -> bool:
    """`ray.shutdown`, left to itself where it hangs; whether it ended."""
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
    try:
        ray.shutdown()
    except Exception as error:
        log.warning("ray.shutdown failed: %s: %s", type(error).__name__, error)
