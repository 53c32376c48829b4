"""Problems of a job on this machine: missing packages, data, files and memory.

Called by the CLI: `run` refuses these problems, `validate` prints them as notes. Imports neither torch nor
Ray.
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

MAX_SOCKET_PATH = 107
"""Limit of a socket's path on Linux, in bytes."""
PROCESS_SUFFIX = "/pymp-01234567/listener-01234567"
"""The longest socket path that processes create below the folder of temporary files."""
RAY_SUFFIX = "/ray/session_2026-11-30_23-59-59_012345_4194304/sockets/plasma_store"
"""The longest socket path that Ray creates below it."""


def local_problems(job: RLJob, base_dir: Path, *, alone: bool) -> list[Problem]:
    """Return problems of installed packages, data sets and reward files; of memory if `alone`, which means
    that all devices are on this machine."""
    spec = job.spec
    if absent := missing_extensions(spec):
        return absent
    tower = spec.model.vision is not None
    data_problems, questions = checked_data(spec.data, base_dir=base_dir, tower=tower)
    suite_problems, suite_questions = checked_suites(spec, base_dir=base_dir, tower=tower)
    all_questions = [*questions, *suite_questions]
    return [
        *data_problems,
        *suite_problems,
        *answer_problems(spec.rewards, spec.data, all_questions, base_dir=base_dir),
        *reward_problems(spec.rewards, base_dir=base_dir),
        *agent_problems(spec.rollout.agent, base_dir=base_dir),
        *tracking_problems(spec),
        *(machine_problems(job, base_dir=base_dir, available=host_bytes()) if alone else ()),
    ]


def socket_problems(*, ray_folder: str | None, local: bool) -> list[Problem]:
    """Return a problem where the path of the folder of temporary files is too long for sockets below it.
    ray_folder: Ray's temporary folder, if it is set."""
    custom_folder = None if local else ray_folder
    folder, suffix = custom_folder or tempfile.gettempdir(), PROCESS_SUFFIX if local else RAY_SUFFIX
    longest = MAX_SOCKET_PATH - len(suffix)
    if len(os.fsencode(folder)) <= longest:
        return []
    message = (
        f"is {folder}, of {len(os.fsencode(folder))} bytes; sockets are made below it, whose paths Linux "
        f"limits to {MAX_SOCKET_PATH}: set it to a folder of {longest} bytes at most, such as /tmp"
    )
    return [Problem("RAY_TMPDIR" if custom_folder else "TMPDIR", message)]


def without_ray(job: RLJob) -> list[Problem]:
    """Return a problem of jobs that `rljob run --local` cannot start: it assigns no devices."""
    accelerator = job.spec.accelerator
    if not is_ascend(accelerator):
        return []
    message = f"is {accelerator.type}, and --local hands out no devices; leave --local out"
    return [Problem("spec.accelerator.type", message)]
