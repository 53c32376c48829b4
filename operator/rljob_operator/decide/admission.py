"""A job that is a Workload of Kueue: it holds pods while that is admitted, and no longer.

Used by `decide`. Which jobs run is Kueue's to say: nothing here compares jobs. What Kueue is to know stands
on the Workload: what the job asks for, whether its pods are there, what it gives back, that it has ended.
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
    """Whether the job may hold pods. Where not, it gives them back and waits."""
    found = draft.seen.workload
    if (
        found is not None
        and found.admitted
        and not (found.evicted or found.finished or found.deleting)
    ):
        draft.set("Admitted", "True", "Admitted", _admitted(draft, found))
        return True
    if not release_pods(draft, "Evicted"):
        draft.update(phase="Evicting")
        draft.set("Admitted", "False", "Evicted", _evicted(found))
        return False
    _queue(draft, found)
    return False


def tell_kueue(draft: Draft) -> None:
    """Of an admitted job: whether its pods are ready, and which it needs no more."""
    seen, found = draft.seen, draft.seen.workload
    assert seen.spec is not None and found is not None, "an admitted job"
    ready, workers = holds(draft.status, "ClusterReady"), None
    if is_elastic(seen.spec) and holds(draft.status, "Running") and seen.cluster is not None:
        counts, there = pods(seen.spec), len(seen.of_role("worker"))
        needed = max(counts.worker + counts.spare, seen.cluster.workers, there)
        workers = needed if needed < found.workers else None
    if found.pods_ready != ready or workers is not None:
        draft.do(TellPods(ready=ready, workers=workers))


def finish(draft: Draft) -> None:
    """Give quota back once a job that has ended holds no devices."""
    seen, found = draft.seen, draft.seen.workload
    if found is None or found.finished or found.deleting:
        return
    if not any(pod.role != "head" for pod in (*seen.pods, *seen.older_pods)):
        succeeded = holds(draft.status, "Succeeded")
        message = "the job has succeeded" if succeeded else "the job has failed"
        draft.do(FinishWorkload(succeeded=succeeded, message=message))


def _queue(draft: Draft, found: Workload | None) -> None:
    """Without pods: ask Kueue for them, and say what it answers."""
    spec = draft.seen.spec
    assert spec is not None, "a job without a valid spec waits for nothing"
    if found is None:
        draft.do(MakeWorkload())
    elif found.finished:
        draft.do(DeleteWorkload())
    elif found.reserved and found.evicted:
        draft.do(ReleaseQuota())
    elif found.outdated and not (found.reserved or found.deleting):
        draft.do(MakeWorkload())
    name, words = (found.name, found.told) if found else ("of its own", "it is being made")
    message = f"waits for Kueue to admit Workload {name} in queue {spec.scheduling.queue}: {words}"
    draft.set("Admitted", "False", "Queued", message)
    draft.set("Stopping", "False", "NotStopping", tell=False)
    draft.set("Running", "False", "Queued", tell=False)
    draft.set("ClusterReady", "False", "Queued", tell=False)
    draft.update(phase="Queued", devices=None, start_time=None, attempt_time=None)


def _admitted(draft: Draft, found: Workload) -> str:
    """By whom, and with how many devices where those are fewer than the job asks for."""
    spec, told = draft.seen.spec, f"by ClusterQueue {found.cluster_queue}"
    assert spec is not None
    if not is_elastic(spec) or found.workers >= found.wanted:
        return told
    generate = roles(spec.placement, spec.accelerator).rollout
    return (
        f"{told} with {found.workers} of {found.wanted} worker pods, so that {generate} devices generate; "
        "suspend the job and let it go on to ask for all of them again"
    )


def _evicted(found: Workload | None) -> str:
    if found is None or found.deleting:
        return "its Workload was deleted"
    if found.finished:
        return f"Workload {found.name} counts as finished"
    return found.evicted or found.told
