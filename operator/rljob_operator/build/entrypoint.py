"""The command of an attempt's driver, as Ray's Jobs API starts it on the head."""

import shlex

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.pod_names import driver_log
from rljob_operator.build.identity import Identity
from rljob_operator.build.names import CONFIG_FILE, run_directory

POD_LOG = "/proc/1/fd/1"
"""What the head's container prints: `kubectl logs` shows it. Its first process has our uid."""

DRIVER_FILE = "/tmp/rljob-driver"
"""In the head's container: the process to end for a checkpoint (`pods`)."""

SCRIPT = """\
echo $$ >{driver}
mkdir -p {folder} 2>/dev/null
if test -f /proc/$$/fd/1; then
  for copy in {pod_log} {folder}/{log}; do
    (exec 2>/dev/null; tail --pid=$$ -c +1 -f /proc/$$/fd/1 >>"$copy" &)
  done
fi
exec rljob run {job} --output {folder} --resume-if-any
"""


def entrypoint(job: RLJob, identity: Identity, *, attempt: int) -> str:
    """`rljob run`, going on from the last checkpoint where there is one, in the pod or on remote storage.

    An attempt that died before its first event starts the run anew. Ray writes what the driver prints
    to a file; `tail` copies it to the pod's log and into the run's folder until the driver has ended.
    A copy that fails or hangs is lost, and neither the driver nor its exit code know of it.
    """
    script = SCRIPT.format(
        folder=shlex.quote(run_directory(job.spec, identity)),
        job=CONFIG_FILE,
        log=driver_log(attempt),
        driver=DRIVER_FILE,
        pod_log=POD_LOG,
    )
    return f"exec sh -c {shlex.quote(script)}"
