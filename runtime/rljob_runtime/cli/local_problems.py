"""What of a job does not hold on this machine: its packages, data, files and memory.

Called by the CLI: `run` refuses these problems, `validate` tells them as notes. Needs neither torch nor Ray.
"""

import os
import tempfile
from pathlib import Path

from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.worker_pods import is_ascend
from rljob_plan.plan import machine_problems
from rljob_runtime.devices.host import host_bytes
from rljob_runtime.extensions import missing_extensions
from rljob_runtime.report.tracking.tracker_table import tracking_problems
from rljob_runtime.task.data.data_problems import checked_data, checked_suites
from rljob_runtime.task.rewards.answer_problems import answer_problems
from rljob_runtime.task.rewards.reward_problems import agent_problems, reward_problems

SOCKET_PATH = 107
"""Bytes that Linux gives the path of a socket."""
OF_PROCESSES = "/pymp-01234567/listener-01234567"
"""What processes make below the folder of temporary files."""
OF_RAY = "/ray/session_2026-11-30_23-59-59_012345_4194304/sockets/plasma_store"
"""What Ray makes there."""


def local_problems(job: RLJob, base_dir: Path, *, alone: bool) -> list[Problem]:
    """Installed packages, data sets, reward files; memory, where `alone`, with all devices on this
    machine."""
    spec = job.spec
    if absent := missing_extensions(spec):
        return absent
    tower = spec.model.vision is not None
    of_data, questions = checked_data(spec.data, base_dir=base_dir, tower=tower)
    of_suites, others = checked_suites(spec, base_dir=base_dir, tower=tower)
    asked = [*questions, *others]
    return [
        *of_data,
        *of_suites,
        *answer_problems(spec.rewards, spec.data, asked, base_dir=base_dir),
        *reward_problems(spec.rewards, base_dir=base_dir),
        *agent_problems(spec.rollout.agent, base_dir=base_dir),
        *tracking_problems(spec),
        *(machine_problems(job, base_dir=base_dir, available=host_bytes()) if alone else ()),
    ]


def socket_problems(*, ray_folder: str | None, local: bool) -> list[Problem]:
    """The folder of temporary files, where its path leaves none for the sockets that are made below it.
    ray_folder: Ray's, where it has one of its own."""
    own = None if local else ray_folder
    folder, below = own or tempfile.gettempdir(), OF_PROCESSES if local else OF_RAY
    longest = SOCKET_PATH - len(below)
    if len(os.fsencode(folder)) <= longest:
        return []
    message = (
        f"is {folder}, of {len(os.fsencode(folder))} bytes; sockets are made below it, whose paths Linux "
        f"limits to {SOCKET_PATH}: set it to a folder of {longest} bytes at most, such as /tmp"
    )
    return [Problem("RAY_TMPDIR" if own else "TMPDIR", message)]


def without_ray(job: RLJob) -> list[Problem]:
    """What `rljob run --local` cannot start: it hands out no devices."""
    accelerator = job.spec.accelerator
    if not is_ascend(accelerator):
        return []
    message = f"is {accelerator.type}, and --local hands out no devices; leave --local out"
    return [Problem("spec.accelerator.type", message)]
