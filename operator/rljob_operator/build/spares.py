"""Let Ray keep idle processes on a worker pod that have imported what workers of a run need.

For jobs with spare nodes this applies to all worker pods, since any of them may be the spare one. Ray turns
an idle process of a node into an actor if it was never used before.
"""

from rljob_api.spec.rljob import RLJobSpec
from rljob_operator.build.names import Manifest

PRELOADED = "rljob_runtime.processes.preloaded"


def idle_processes(spec: RLJobSpec) -> int:
    """Return the processes that may have to move to a node together: devices, feeder, reward worker, one
    controller per state. One more has reported its versions and can no longer become an actor."""
    return spec.accelerator.devices_per_node + 3 + len(spec.states)


def warm_resources(spec: RLJobSpec) -> dict[str, str]:
    """Return what a worker offers to Ray, which starts one process per CPU. No part of a run requests
    CPUs."""
    return {"CPU": str(idle_processes(spec))} if spec.accelerator.spare_nodes else {}


def warm_environment(spec: RLJobSpec) -> list[Manifest]:
    """Return the variables of Ray for warm processes."""
    if not spec.accelerator.spare_nodes:
        return []
    idle = str(idle_processes(spec))
    values = {
        "enable_worker_prestart": "1",
        "num_workers_soft_limit": idle,
        "worker_maximum_startup_concurrency": idle,  # Ray starts no more than these beforehand
        "preload_python_modules": PRELOADED,
    }
    return [{"name": f"RAY_{name}", "value": value} for name, value in values.items()]
