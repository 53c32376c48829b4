"""Names and labels of a job's pods, and paths inside them.

The operator sets them; the command line looks them up: `rljob status`, `rljob logs`, `rljob report`.
"""

from rljob_api.spec.rljob import GROUP

JOB_LABEL = f"{GROUP}/job"
JOB_UID_LABEL = f"{GROUP}/job-uid"
ROLE_LABEL = f"{GROUP}/role"
CLUSTER_LABEL = "ray.io/cluster"
"""KubeRay sets this label on every pod."""
HEAD_CONTAINER = "ray-head"
CONFIG_DIRECTORY = "/etc/rljob"
BRING_UP_FILE = "bring-up.json"
"""The file next to the job's file that `rljob doctor --bring-up` wrote."""
RUNS_DIRECTORY = "/var/lib/rljob"
DOCK_DIRECTORY = "/run/rljob"
"""Directory of a warehouse's socket, through which the workers of its node access its memory."""


def run_directory(*, namespace: str, name: str, uid: str, path: str | None = None) -> str:
    """Return the run's folder in the pods of head and workers. path: spec.checkpoint.storage.path.

    By default no two jobs share a folder: a job of the same name does not continue an earlier one.
    """
    return f"{RUNS_DIRECTORY}/{path or f'{namespace}/{name}-{uid[:8]}'}"


def driver_log(attempt: int | str) -> str:
    """Return the name of the file in the run's folder that stores the output of an attempt's driver."""
    return f"driver-{attempt}.log"
