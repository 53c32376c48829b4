"""A job that is a Workload of Kueue: it holds pods only while the Workload is admitted.

Used by `decide`. Kueue decides which jobs run: nothing here compares jobs. The Workload carries what Kueue
needs: what the job requests, whether its pods are ready, what it returns, and that it has ended.
"""

from rljob_api.topology.devices import pods, roles
from rljob_api.topology.elastic import is_elastic
from rljob_operator.decide.draft import Draft, holds
from rljob_operator.decide.model import (
    DeleteWorkload,
    FinishWorkload,
    MakeWorkload,
    ReleaseQuota,
    TellPods,
    Workload,
)
from rljob_operator.decide.stopping import release_pods


def is_admitted(draft: Draft) -> bool:
    """Return whether the job may hold pods. Otherwise release its pods and queue it."""
    workload = draft.observed.workload
    if (
        workload is not None
        and workload.admitted
        and not (workload.evicted or workload.finished or workload.deleting)
    ):
        draft.set("Admitted", "True", "Admitted", _admitted(draft, workload))
        return True
    if not release_pods(draft, "Evicted"):
        draft.update(phase="Evicting")
        draft.set("Admitted", "False", "Evicted", _evicted(workload))
        return False
    _queue(draft, workload)
    return False


def report_to_kueue(draft: Draft) -> None:
    """Report for an admitted job whether its pods are ready, and which it no longer needs."""
    observed, workload = draft.observed, draft.observed.workload
    assert observed.spec is not None and workload is not None, "an admitted job"
    ready, workers = holds(draft.status, "ClusterReady"), None
    if (
        is_elastic(observed.spec)
        and holds(draft.status, "Running")
        and observed.cluster is not None
    ):
        counts, current = pods(observed.spec), len(observed.of_role("worker"))
        needed = max(counts.worker + counts.spare, observed.cluster.workers, current)
        workers = needed if needed < workload.workers else None
    if workload.pods_ready != ready or workers is not None:
        draft.do(TellPods(ready=ready, workers=workers))


def finish(draft: Draft) -> None:
    """Return quota once a job that has ended holds no devices."""
    observed, workload = draft.observed, draft.observed.workload
    if workload is None or workload.finished or workload.deleting:
        return
    if not any(pod.role != "head" for pod in (*observed.pods, *observed.older_pods)):
        succeeded = holds(draft.status, "Succeeded")
        message = "the job has succeeded" if succeeded else "the job has failed"
        draft.do(FinishWorkload(succeeded=succeeded, message=message))


def _queue(draft: Draft, workload: Workload | None) -> None:
    """Without pods: request them from Kueue, and set the condition to Kueue's answer."""
    spec = draft.observed.spec
    assert spec is not None, "a job without a valid spec waits for nothing"
    if workload is None:
        draft.do(MakeWorkload())
    elif workload.finished:
        draft.do(DeleteWorkload())
    elif workload.reserved and workload.evicted:
        draft.do(ReleaseQuota())
    elif workload.outdated and not (workload.reserved or workload.deleting):
        draft.do(MakeWorkload())
    name, words = (
        (workload.name, workload.message) if workload else ("of its own", "it is being made")
    )
    message = f"waits for Kueue to admit Workload {name} in queue {spec.scheduling.queue}: {words}"
    draft.set("Admitted", "False", "Queued", message)
    draft.set("Stopping", "False", "NotStopping", emit=False)
    draft.set("Running", "False", "Queued", emit=False)
    draft.set("ClusterReady", "False", "Queued", emit=False)
    draft.update(phase="Queued", devices=None, start_time=None, attempt_time=None)


def _admitted(draft: Draft, workload: Workload) -> str:
    """Describe which queue admitted the job, and with how many devices if those are fewer than it
    requests."""
    spec, text = draft.observed.spec, f"by ClusterQueue {workload.cluster_queue}"
    assert spec is not None
    if not is_elastic(spec) or workload.workers >= workload.requested:
        return text
    generate = roles(spec.placement, spec.accelerator).rollout
    return (
        f"{text} with {workload.workers} of {workload.requested} worker pods, "
        f"so that {generate} devices generate; "
        "suspend the job and let it go on to ask for all of them again"
    )


def _evicted(workload: Workload | None) -> str:
    if workload is None or workload.deleting:
        return "its Workload was deleted"
    if workload.finished:
        return f"Workload {workload.name} counts as finished"
    return workload.evicted or workload.message
