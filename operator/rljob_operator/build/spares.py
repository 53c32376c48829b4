"""What makes Ray keep processes on a worker pod that have imported what workers of a run need.

Of jobs with spare nodes, on all worker pods: any of them may be the spare one. Ray makes an actor of an idle
process of its node where there is one that was nothing before.
"""

from rljob_api.spec.rljob import RLJobSpec
from rljob_operator.build.names import Manifest

PRELOADED = "rljob_runtime.processes.preloaded"


def idle_processes(spec: RLJobSpec) -> int:
    """Those that may have to move to a node at once: devices, feeder, reward worker, a controller a state.
    And one that has told its versions, which is not made an actor any more."""
    return spec.accelerator.devices_per_node + 3 + len(spec.states)


def warm_resources(spec: RLJobSpec) -> dict[str, str]:
    """What a worker offers to Ray, which starts one process a CPU. Nothing of a run asks for CPUs."""
    return {"CPU": str(idle_processes(spec))} if spec.accelerator.spare_nodes else {}


def warm_environment(spec: RLJobSpec) -> list[Manifest]:
    """Variables of Ray."""
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
