"""The command of an attempt's driver, as Ray's Jobs API starts it on the head."""

import shlex

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.pod_names import driver_log
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import CONFIG_FILE, run_directory

POD_LOG = "/proc/1/fd/1"
"""Output of the head's container, which `kubectl logs` shows. Its first process has the same uid."""

DRIVER_FILE = "/tmp/rljob-driver"
"""File in the head's container with the process to end for a checkpoint (`pods`)."""

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


def entrypoint(job: RLJob, identity: JobIdentity, *, attempt: int) -> str:
    """Return the command `rljob run`, which resumes from the last checkpoint if there is one, in the pod or
    on remote storage.

    An attempt that died before its first event starts the run again. Ray writes the driver's output to a
    file; `tail` copies it to the pod's log and into the run's folder until the driver has ended. A copy that
    fails or hangs is lost, and does not affect the driver or its exit code.
    """
    script = SCRIPT.format(
        folder=shlex.quote(run_directory(job.spec, identity)),
        job=CONFIG_FILE,
        log=driver_log(attempt),
        driver=DRIVER_FILE,
        pod_log=POD_LOG,
    )
    return f"exec sh -c {shlex.quote(script)}"
