"""Check labels and annotations of an RLJob: what Kubernetes accepts, and queues, which `spec.scheduling`
names.

Called by `load`. The operator copies the others to the job's RayCluster, as KubeRay does with a RayJob's.
"""

import re
from collections.abc import Iterator

from rljob_api.check.annotations import annotation_problems
from rljob_api.check.pod_rules import key_problems
from rljob_api.spec.pods import LABEL_VALUE_PATTERN
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.scheduling import PRIORITY_LABELS, QUEUE_LABELS


def metadata_problems(job: RLJob) -> Iterator[Problem]:
    """Yield keys and values that Kubernetes refuses, and labels that have no effect on an RLJob."""
    metadata = job.metadata
    for kind, entries in (("labels", metadata.labels), ("annotations", metadata.annotations)):
        yield from key_problems(f"metadata.{kind}", entries)
    for key, value in metadata.labels.items():
        if len(value) > 63 or not re.fullmatch(LABEL_VALUE_PATTERN, value):
            yield Problem(
                f"metadata.labels[{key}]",
                f"is {value!r}; a label's value has at most 63 letters, digits, '-', '_' and '.', and begins "
                "and ends with a letter or digit",
            )
    yield from _queue_problems(job)
    yield from annotation_problems(metadata.annotations)


def _queue_problems(job: RLJob) -> Iterator[Problem]:
    scheduling = job.spec.scheduling
    for labels, field, configured in (
        (QUEUE_LABELS, "queue", scheduling.queue),
        (PRIORITY_LABELS, "priorityClass", scheduling.priority_class),
    ):
        for scheduler, key in labels.items():
            value = job.metadata.labels.get(key)
            if value is not None and (scheduling.scheduler != scheduler or value != configured):
                yield Problem(
                    f"metadata.labels[{key}]",
                    f"does nothing on an RLJob; set spec.scheduling.scheduler: {scheduler} and "
                    f"spec.scheduling.{field}: {value}",
                )
