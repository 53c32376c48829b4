"""The command of an attempt's driver, as Ray's Jobs API starts it on the head."""

import shlex

from rljob_api.rljob import RLJob
from rljob_operator.build.names import CONFIG_FILE, run_directory
from rljob_operator.identity import Identity


def entrypoint(job: RLJob, identity: Identity) -> str:
    """`rljob run`, going on from the last checkpoint where the run's folder holds a run already.

    The same for every attempt: an attempt that died before its first event starts the run anew.
    """
    folder = shlex.quote(run_directory(job.spec, identity))
    script = (
        f"test -f {folder}/events.jsonl && set -- --resume; "
        f'exec rljob run {CONFIG_FILE} --output {folder} "$@"'
    )
    return f"sh -c {shlex.quote(script)}"
