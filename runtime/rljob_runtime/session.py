"""Ray for the time of one run: on this machine, or the cluster where the run's pods are.

Called by `launch`.
"""

import contextlib
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import ray

from rljob_api.ray_resources import device_resource
from rljob_api.rljob import RLJob
from rljob_api.topology import total_devices
from rljob_runtime.guardian import Guardian
from rljob_runtime.versions import check_nodes, connect

OBJECT_STORE_BYTES = 128 * 2**20


@contextlib.contextmanager
def ray_session(job: RLJob, address: str | None) -> Iterator[Guardian]:
    """Ray on this machine, or the cluster at `address`; ended whatever happens."""
    devices = total_devices(job.spec.placement, job.spec.accelerator)
    namespace = f"rljob-{job.metadata.name}-{secrets.token_hex(4)}"
    options: dict[str, Any] = {"namespace": namespace, "address": address or "local"}
    if address is None:
        options |= {
            "resources": {device_resource(job.spec.accelerator): devices},
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            # By default Ray's workers give way to everything else on the machine.
            "_system_config": {"worker_niceness": 0},
        }
    logging.getLogger("ray").setLevel(logging.ERROR)  # it greets with its way of authentication
    connect(log_to_driver=False, logging_level="error", configure_logging=False, **options)
    guardian = Guardian()
    try:
        guardian.watch_descendants()
        if address is not None:
            check_nodes()
        yield guardian
    finally:
        ray.shutdown()
        guardian.dismiss()
