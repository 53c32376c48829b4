"""What of a job does not hold on this machine: its packages, data, files and memory.

Called by the CLI: `run` refuses these problems, `validate` tells them as notes. Needs neither torch nor Ray.
"""

from pathlib import Path

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.worker_pods import is_ascend
from rljob_plan.plan import machine_problems
from rljob_runtime.devices.host import host_bytes
from rljob_runtime.extensions import missing
from rljob_runtime.report.tracking.tracker_table import tracking_problems
from rljob_runtime.task.data.data_problems import data_problems, suite_problems
from rljob_runtime.task.rewards.reward_problems import agent_problems, reward_problems


def local_problems(job: RLJob, base_dir: Path, *, alone: bool) -> list[Problem]:
    """Installed packages, data sets, reward files; memory, where `alone`, with all devices on this
    machine."""
    spec = job.spec
    if absent := missing(spec):
        return absent
    tower = spec.model.vision is not None
    return [
        *data_problems(spec.data, base_dir=base_dir, tower=tower),
        *suite_problems(spec, base_dir=base_dir, tower=tower),
        *reward_problems(spec.rewards, base_dir=base_dir),
        *agent_problems(spec.rollout.agent, base_dir=base_dir),
        *tracking_problems(spec),
        *(machine_problems(job, base_dir=base_dir, available=host_bytes()) if alone else ()),
    ]


def without_ray(job: RLJob) -> list[Problem]:
    """What `rljob run --local` cannot start: it hands out no devices."""
    accelerator = job.spec.accelerator
    if not is_ascend(accelerator):
        return []
    message = f"is {accelerator.type}, and --local hands out no devices; leave --local out"
    return [Problem("spec.accelerator.type", message)]
