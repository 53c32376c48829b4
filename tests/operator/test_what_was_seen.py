"""The cache and what fills it: watch events and lists. News reach the queue, repetitions do not."""

import kopf
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from rljob_operator.reconcile.observe import job_of
from rljob_operator.watch.cache import JOB_LABEL, KINDS, Cache, JobKey, reduced
from rljob_operator.watch.informers import WatchAges, configure, register, watch_trace
from rljob_operator.watch.resync import resync

JOB = JobKey("ns", "job")


def manifest(name, *, uid="u1", version="1", job=None, namespace="ns", **rest):
    labels = {"labels": {JOB_LABEL: job}} if job else {}
    metadata = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version}
    return {"metadata": {**metadata, **labels}, **rest}


class Queue(list):
    def __init__(self):
        super().__init__()
        self.new = []

    def add(self, key, *, new=False):
        self.append(key)
        self.new.append(new)


def test_an_object_is_found_by_name_and_by_job():
    cache = Cache()

    cache.put("RLJob", manifest("job"), observed_at=0)
    cache.put("Pod", manifest("b", job="job"), observed_at=0)
    cache.put("Pod", manifest("a", job="job"), observed_at=0)

    assert cache.jobs() == [JOB]
    assert cache.get("RLJob", "ns", "job")["metadata"]["uid"] == "u1"
    assert [pod["metadata"]["name"] for pod in cache.of_job("Pod", JOB)] == ["a", "b"]
    assert cache.of_job("RayCluster", JOB) == []
    assert cache.get("Pod", "other", "a") is None


def test_objects_are_counted_once():
    cache = Cache()

    for version in ("1", "2"):
        cache.put("RLJob", manifest("job", version=version), observed_at=0)
    cache.put("RLJob", manifest("other", uid="u2"), observed_at=0)
    two = cache.count("RLJob")
    cache.remove("RLJob", manifest("job", version="3"), observed_at=1)
    cache.remove("RLJob", manifest("job", version="3"), observed_at=1)

    assert (two, cache.count("RLJob"), cache.count("Pod")) == (2, 1, 0)


def test_the_same_version_is_no_news_and_a_new_one_is():
    cache = Cache()

    first = cache.put("RLJob", manifest("job"), observed_at=0)
    again = cache.put("RLJob", manifest("job"), observed_at=1)
    changed = cache.put(
        "RLJob", manifest("job", version="2", spec={"suspend": True}), observed_at=2
    )

    assert (first, again, changed) == ({JOB}, set(), {JOB})


def test_an_older_version_never_replaces_a_newer_one():
    cache = Cache()
    cache.put("RLJob", manifest("job", version="10", spec={"suspend": True}), observed_at=0)

    late = cache.put("RLJob", manifest("job", version="9", spec={"suspend": False}), observed_at=1)
    another = cache.put("RLJob", manifest("job", uid="u2", version="8"), observed_at=2)

    assert (late, another) == (set(), {JOB})
    assert cache.get("RLJob", "ns", "job")["metadata"]["uid"] == "u2"


def test_what_was_deleted_does_not_come_back():
    cache = Cache()
    cache.put("RLJob", manifest("job", version="1"), observed_at=0)
    cache.remove("RLJob", manifest("job", version="3"), observed_at=1)

    late = cache.put("RLJob", manifest("job", version="2"), observed_at=2)

    assert late == set()
    assert cache.jobs() == []


def test_a_pod_is_kept_small_and_changes_that_decide_nothing_are_no_news():
    cache = Cache()
    container = {"name": "ray", "restartCount": 0, "image": "x", "state": {"running": {}}}
    status = {"phase": "Running", "qosClass": "Burstable", "containerStatuses": [container]}
    spec = {"nodeName": "n1", "containers": [{"env": [1] * 1000}]}
    cache.put("Pod", manifest("p", job="job", spec=spec, status=status), observed_at=0)

    other = {**status, "qosClass": "Guaranteed"}
    unimportant = cache.put(
        "Pod", manifest("p", version="2", job="job", spec=spec, status=other), observed_at=1
    )
    restarted = {**status, "containerStatuses": [{**container, "restartCount": 1}]}
    important = cache.put(
        "Pod", manifest("p", version="3", job="job", spec=spec, status=restarted), observed_at=2
    )

    pod = cache.get("Pod", "ns", "p")
    assert (unimportant, important) == (set(), {JOB})
    assert pod["spec"] == {"nodeName": "n1"}
    assert pod["metadata"]["resourceVersion"] == "3"
    assert pod["status"]["containerStatuses"] == [
        {"name": "ray", "restartCount": 1, "state": {"running": {}}}
    ]


def test_of_a_job_that_is_too_large_the_problem_is_kept_and_of_none_what_kubectl_notes():
    cache, large = Cache(), {"rewards": [{"params": [0] * 100_000}]}
    notes = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}
    whole = manifest("job", spec=large)
    whole["metadata"]["annotations"] = notes
    cache.put("RLJob", whole, observed_at=0)

    listed = reduced("RLJob", whole)
    again = cache.replace("RLJob", [listed], began=1, namespaces=None)

    job = cache.get("RLJob", "ns", "job")
    assert job["spec"] == {}
    assert job["metadata"]["annotations"] == {"a": "b"}
    (problem,) = job_of(job)[1]
    assert problem.path == "spec.rewards[0].params"
    assert listed == job
    assert again == set()


def test_an_object_that_moves_to_another_job_is_news_for_both():
    cache = Cache()
    cache.put("Pod", manifest("p", job="job"), observed_at=0)

    assert cache.put("Pod", manifest("p", version="2", job="two"), observed_at=1) == {
        JOB,
        JobKey("ns", "two"),
    }
    assert cache.of_job("Pod", JOB) == []


def test_a_late_deletion_does_not_take_the_successor_of_the_same_name():
    cache = Cache()
    cache.put("RLJob", manifest("job", uid="old"), observed_at=0)
    cache.put("RLJob", manifest("job", uid="new"), observed_at=1)

    late = cache.remove("RLJob", manifest("job", uid="old"), observed_at=2)
    own = cache.remove("RLJob", manifest("job", uid="new"), observed_at=3)

    assert (late, own) == (set(), {JOB})
    assert cache.jobs() == []


def test_a_list_forgets_what_was_deleted_unseen_in_the_namespaces_that_it_covers():
    cache = Cache()
    for name, namespace in (("gone", "ns"), ("stays", "ns"), ("far", "elsewhere")):
        cache.put("RLJob", manifest(name, namespace=namespace), observed_at=0)

    news = cache.replace("RLJob", [manifest("stays")], began=5, namespaces={"ns"})

    assert news == {JobKey("ns", "gone")}
    assert set(cache.jobs()) == {JobKey("ns", "stays"), JobKey("elsewhere", "far")}


def test_a_list_does_not_undo_what_events_told_while_it_was_on_its_way():
    cache = Cache()
    cache.put("RLJob", manifest("deleted", uid="d"), observed_at=0)
    cache.put("RLJob", manifest("changed", version="8"), observed_at=6)
    cache.put("RLJob", manifest("created", uid="c"), observed_at=6)
    cache.remove("RLJob", manifest("deleted", uid="d"), observed_at=6)

    old = [manifest("deleted", uid="d"), manifest("changed", version="7")]
    news = cache.replace("RLJob", old, began=5, namespaces=None)

    assert news == set()
    assert {job.name for job in cache.jobs()} == {"changed", "created"}
    assert cache.get("RLJob", "ns", "changed")["metadata"]["resourceVersion"] == "8"


async def test_a_resync_lists_every_kind_fills_the_cache_and_queues_every_job():
    class Kube:
        def __init__(self):
            self.asked = []

        async def list(self, api_version, kind, namespace=None, *, labels=None, keep=dict):
            self.asked.append((api_version, kind, namespace, labels))
            return [manifest("job")] if kind == "RLJob" else []

    kube, cache, queue = Kube(), Cache(), Queue()
    before = cache.filled()

    first = await resync(kube, cache=cache, queue=queue, namespaces=["ns"])
    second = await resync(kube, cache=cache, queue=queue, namespaces=["ns"])

    assert (before, cache.filled()) == (False, True)
    assert (first, second, queue) == ({JOB}, set(), [JOB, JOB])
    assert kube.asked[:3] == [
        ("rljob.io/v1alpha1", "RLJob", "ns", None),
        ("ray.io/v1", "RayCluster", "ns", {JOB_LABEL: None}),
        ("v1", "Pod", "ns", {JOB_LABEL: None}),
    ]


def handlers():
    registry, cache, queue = kopf.OperatorRegistry(), Cache(), Queue()
    now = [0.0]
    ages = WatchAges(lambda: now[0])
    register(registry, cache=cache, queue=queue, ages=ages, clock=lambda: now[0])
    return registry, cache, queue, ages, now


async def test_a_job_without_a_status_is_new():
    registry, _, queue, _, _ = handlers()
    rljobs = next(h for h in registry._watching._handlers if h.id == "observe-rljobs").fn
    known = manifest("job", version="2", status={"phase": "Starting"})

    await rljobs(event={"type": "ADDED", "object": manifest("job")}, patch={})
    await rljobs(event={"type": "MODIFIED", "object": known}, patch={})

    assert (queue, queue.new) == ([JOB, JOB], [True, False])


async def test_events_fill_the_cache_queue_the_job_and_return_nothing():
    registry, cache, queue, _, _ = handlers()
    rljobs = next(h for h in registry._watching._handlers if h.id == "observe-rljobs").fn

    listed = await rljobs(event={"type": None, "object": manifest("job")}, patch={})
    again = await rljobs(event={"type": "MODIFIED", "object": manifest("job")}, patch={})
    deleted = await rljobs(event={"type": "DELETED", "object": manifest("job")}, patch={})

    assert (listed, again, deleted) == (None, None, None)
    assert queue == [JOB, JOB]
    assert cache.jobs() == []


def test_only_watching_handlers_are_registered_so_kopf_never_writes_to_our_objects():
    registry, *_ = handlers()

    assert [handler.id for handler in registry._watching._handlers] == [
        "observe-rljobs",
        "observe-rayclusters",
        "observe-pods",
    ]
    for kind in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert not kind._handlers


def test_pods_clusters_and_workloads_are_selected_by_the_server():
    settings = kopf.OperatorSettings()

    configure(settings)

    selectors = settings.watching.label_selectors
    assert list(selectors.values()) == [JOB_LABEL] * 3
    assert not settings.posting.enabled


async def test_an_event_or_an_accepted_watch_is_a_sign_of_life():
    registry, _, _, ages, now = handlers()
    pods = next(h for h in registry._watching._handlers if h.id == "observe-pods").fn
    before_start = ages.oldest()
    ages.started(KINDS)
    app = web.Application()

    async def answer(request):
        return web.Response(status=403 if "rayclusters" in request.path else 200)

    app.router.add_get("/{path:.*}", answer)

    async with (
        TestServer(app) as server,
        ClientSession(trace_configs=[watch_trace(ages)]) as session,
    ):
        now[0] = 30.0
        await pods(event={"type": "ADDED", "object": manifest("p", job="job")})
        for path in ("rljobs?watch=true", "rayclusters?watch=true", "rayclusters"):
            async with session.get(server.make_url(f"/apis/g/v1/namespaces/ns/{path}")):
                pass
        now[0] = 50.0

    assert before_start == ("", 0.0)
    assert ages.oldest() == ("RayCluster", 50.0)
    assert sorted(ages._last_active.values()) == [0.0, 30.0, 30.0]
