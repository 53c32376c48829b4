"""How a job's pods are found, and what lies where in them.

Given by the operator, looked for by the command line: `rljob status`, `rljob logs`, `rljob report`.
"""

from rljob_api.spec.rljob import GROUP

JOB_LABEL = f"{GROUP}/job"
JOB_UID_LABEL = f"{GROUP}/job-uid"
ROLE_LABEL = f"{GROUP}/role"
CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay puts it on every pod."""
HEAD_CONTAINER = "ray-head"
CONFIG_DIRECTORY = "/etc/rljob"
BRING_UP_FILE = "bring-up.json"
"""Beside the job's file: what `rljob doctor --bring-up` wrote."""
RUNS_DIRECTORY = "/var/lib/rljob"
DOCK_DIRECTORY = "/run/rljob"
"""Where a warehouse's socket lies, by which the workers of its node get at its memory."""


def run_directory(*, namespace: str, name: str, uid: str, path: str | None = None) -> str:
    """The run's folder in the pods of head and workers. path: spec.checkpoint.storage.path.

    By default no two jobs share one: a job of the same name is no continuation of an earlier one.
    """
    return f"{RUNS_DIRECTORY}/{path or f'{namespace}/{name}-{uid[:8]}'}"


def driver_log(attempt: int | str) -> str:
    """Name of the file in the run's folder with what an attempt's driver has printed."""
    return f"driver-{attempt}.log"
