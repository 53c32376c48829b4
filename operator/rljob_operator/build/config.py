"""The ConfigMap with the resolved job, which `rljob run` on the head reads.

It leaves out what only the operator reads, so that suspending a job or moving a deadline changes
no file under a run.
"""

import yaml

from rljob_api.spec.rljob import CLUSTER_ONLY, RLJob
from rljob_api.topology.resolved import resolve
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.names import CONFIG_KEY, Manifest, child_name, metadata

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's dumper is ten times faster than PyYAML's, but may be missing in a wheel."""


def config_map(job: RLJob, identity: JobIdentity) -> Manifest:
    """Return the ConfigMap. job: passed the rules."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(identity, child_name(identity), component="config"),
        "data": {CONFIG_KEY: _job_text(job)},
    }


def _job_text(job: RLJob) -> str:
    resolved = resolve(job)
    manifest = {
        "apiVersion": resolved.api_version,
        "kind": resolved.kind,
        "metadata": {"name": resolved.metadata.name},
        "spec": resolved.spec.model_dump(
            by_alias=True, exclude_none=True, exclude=set(CLUSTER_ONLY)
        ),
    }
    return str(yaml.dump(manifest, Dumper=DUMPER, sort_keys=False, allow_unicode=True, width=100))
