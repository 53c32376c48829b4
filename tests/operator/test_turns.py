"""Who of the jobs that want the same devices keeps its pods, and what the others are told."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import JOB, make_job, merged
from memory_api import Manifest
from memory_world import KEY, NODE, PATH, MemoryKube, World, make_operator, pods_of

from rljob_api.spec.status import Condition, RayClusterStatus, RLJobStatus
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, holds, rfc3339
from rljob_operator.decide.model import (
    Cluster,
    DeleteCluster,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
    ReleaseWorkers,
)
from rljob_operator.decide.turns import ASKS, PATIENCE_SECONDS, TURN_SECONDS, claim_of
from rljob_operator.reconcile.observe import cluster_of
from rljob_operator.watch.cache import KINDS, Cache, JobKey

NOW = 1_000_000.0
TOLD = "waits for team/elder, which began before it and lacks 2 of 4 worker pods"


def job(name: str, *, bound: int, age: float, namespace: str = "team", **spec: Any) -> Observation:
    """A job that wants four nodes; so many pods have one, the others found no room two patiences ago.
    age: seconds since its attempt began."""
    moved = NOW - 2 * PATIENCE_SECONDS
    workers = [
        Pod(
            name=f"w-{number}",
            uid=f"{name}-{number}",
            role="worker",
            ready=number < bound,
            node=f"node-{number}" if number < bound else "",
            no_room=number >= bound,
            moved=moved,
        )
        for number in range(4)
    ]
    head = Pod(name="head", uid="head", role="head", ready=True, incarnation="head/0")
    return Observation(
        identity=JobIdentity(namespace=namespace, name=name, uid=f"uid-{name}", generation=1),
        created=NOW - age,
        deleting=False,
        spec=make_job(nodes=4, **spec).spec,
        problems=(),
        status=RLJobStatus(
            observed_generation=1,
            start_time=rfc3339(NOW - age),
            attempt_time=rfc3339(NOW - age),
            attempt=0,
            restarts=0,
            ray_cluster=RayClusterStatus(name=f"{name}-0", uid="c"),
        ),
        cluster=Cluster(name=f"{name}-0", uid="c", workers=4),
        pods=(head, *workers),
        ray=RayAnswer(reached=False),
    )


def among(own: Observation, *others: Observation) -> Observation:
    """The job, which knows of these others."""
    claims = [claim for other in others if (claim := claim_of(other)) is not None]
    return replace(own, rivals=tuple(claims))


def given_back(
    seen: Observation, *, seconds: float = 100.0, reason: str = "WaitsForJob"
) -> Observation:
    """The job that was told to wait so many seconds ago, without its worker pods."""
    waits = Condition(
        type="Held", status="True", reason=reason, last_transition_time=rfc3339(NOW - seconds)
    )
    assert seen.cluster is not None
    return replace(
        seen,
        status=seen.status.model_copy(update={"conditions": [waits]}),
        cluster=replace(seen.cluster, workers=0),
        pods=tuple(seen.of_role("head")),
    )


def released(seen: Observation, now: float = NOW) -> bool:
    return any(isinstance(action, ReleaseWorkers) for action in decide(seen, now).actions)


def asks(seen: Observation, now: float = NOW) -> bool:
    return any(isinstance(action, MakeChildren) for action in decide(seen, now).actions)


ELDER, YOUNGER = job("elder", bound=2, age=400), job("younger", bound=2, age=200)


def test_of_two_with_half_of_the_devices_each_the_later_one_gives_its_pods_back_and_says_for_whom():
    kept, waits = decide(among(ELDER, YOUNGER), NOW), decide(among(YOUNGER, ELDER), NOW)

    assert kept.actions == ()
    assert not holds(kept.status, "Held")
    assert waits.actions == (ReleaseWorkers(cluster="younger-0"),)
    told, ready = condition(waits.status, "Held"), condition(waits.status, "ClusterReady")
    assert told is not None and ready is not None
    assert (told.status, told.reason, told.message) == ("True", "WaitsForJob", TOLD)
    assert ready.message.startswith(f"{TOLD}; 2 of 4 worker pods are ready")
    assert [event.message for event in waits.events if event.reason == "WaitsForJob"] == [TOLD]
    assert (waits.status.attempt, waits.status.restarts) == (0, 0)


def test_both_must_have_got_no_further_for_a_while():
    elder, younger = (
        replace(seen, pods=tuple(replace(pod, moved=NOW - 1) for pod in seen.pods))
        for seen in (ELDER, YOUNGER)
    )

    for seen in (among(YOUNGER, elder), among(younger, ELDER)):
        assert not released(seen)
        assert released(seen, NOW + PATIENCE_SECONDS)


def test_of_two_that_began_in_the_same_second_exactly_one_keeps_its_pods():
    one, other = job("a", bound=2, age=200), job("b", bound=2, age=200)

    assert (released(among(one, other)), released(among(other, one))) == (False, True)


def test_in_a_ring_of_three_the_first_keeps_its_pods_and_both_others_wait_for_it():
    jobs = [job(name, bound=1, age=age) for name, age in {"a": 300, "b": 200, "c": 100}.items()]

    others = [[other for other in jobs if other is not own] for own in jobs]
    seen = [among(own, *rest) for own, rest in zip(jobs, others, strict=True)]

    assert [released(one) for one in seen] == [False, True, True]
    for one in seen[1:]:
        told = condition(decide(one, NOW).status, "Held")
        assert told is not None and told.message.startswith("waits for team/a,")


def test_a_job_of_another_namespace_is_not_named():
    own = job("younger", bound=2, age=200, namespace="others")

    told = condition(decide(among(own, ELDER), NOW).status, "Held")

    assert told is not None
    assert told.message == TOLD.replace("team/elder", "a job of another namespace")


SUBMITTED = {"ray_cluster": RayClusterStatus(name="c", submission_id="s", head="head/0")}
RIVALS = {
    "whose pods never find a node, such as by a wrong nodeSelector": job("elder", bound=0, age=400),
    "that has all its pods": job("elder", bound=4, age=400),
    "that another scheduler places": job(
        "elder", bound=2, age=400, scheduling={"scheduler": "volcano"}
    ),
    "that runs and grows, whose new pods find no room": replace(
        ELDER, status=ELDER.status.model_copy(update=SUBMITTED)
    ),
    "that is being suspended": job("elder", bound=2, age=400, suspend=True),
}  # fmt: skip


@pytest.mark.parametrize("name", RIVALS)
def test_nobody_gives_pods_back_or_waits_for_a_job(name):
    rival = RIVALS[name]

    assert not released(among(YOUNGER, rival))
    assert asks(among(given_back(YOUNGER), rival))


def test_a_job_that_other_schedulers_place_keeps_its_pods():
    own = job("younger", bound=2, age=200, scheduling={"scheduler": "volcano"})

    assert not released(among(own, ELDER))


def test_pods_beyond_those_that_the_job_needs_hold_nobody_and_are_not_missed():
    more = Pod(name="w-4", uid="4", role="worker", ready=False, no_room=True, moved=0.0)
    whole = job("elder", bound=4, age=400)
    with_more = replace(whole, pods=(*whole.pods, more))

    assert not released(among(with_more, job("eldest", bound=2, age=900)))
    assert not released(among(YOUNGER, with_more))


def test_who_waits_asks_for_nothing_as_long_as_somebody_before_it_lacks_pods():
    waits = given_back(YOUNGER)

    for before in (ELDER, given_back(ELDER)):
        decision = decide(among(waits, before), NOW)
        assert decision.actions == ()
        assert holds(decision.status, "Held")
        assert decision.requeue_seconds is not None and decision.requeue_seconds <= 15


def test_who_waits_leaves_the_one_before_it_the_time_to_get_the_pods_that_it_asked_for():
    asked = given_back(ELDER, seconds=5)
    told = [c.model_copy(update={"status": "False"}) for c in asked.status.conditions]
    asked = replace(asked, status=asked.status.model_copy(update={"conditions": told}))

    for seconds, over in {0.0: False, PATIENCE_SECONDS: True}.items():
        assert asks(among(given_back(YOUNGER), asked), NOW + seconds) == over


def test_who_waits_asks_again_once_nobody_is_before_it_and_starts_only_with_pods_of_its_own():
    left = replace(given_back(YOUNGER), pods=tuple(replace(p, ready=True) for p in YOUNGER.pods))

    decision = decide(among(left), NOW)

    assert decision.actions == (MakeChildren(cluster="younger-0"),)
    told, ready = condition(decision.status, "Held"), condition(decision.status, "ClusterReady")
    assert told is not None and ready is not None
    assert (told.status, told.reason) == ("False", "AsksAgain")
    assert ready.message.startswith(ASKS)


@pytest.mark.parametrize("reached", ["nothing", "status"])
def test_an_operator_that_died_before_it_acted_acts_again(reached):
    """The condition says what is to be; the RayCluster what is."""
    gives, waits = among(YOUNGER, ELDER), among(given_back(YOUNGER))
    if reached == "status":
        gives = replace(gives, status=decide(gives, NOW).status)
        waits = replace(waits, status=decide(waits, NOW).status)

    assert released(gives)
    assert asks(waits)


def test_a_changed_spec_gives_no_pods_to_a_job_that_waits():
    waits = given_back(YOUNGER)
    changed = replace(waits, identity=replace(waits.identity, generation=2))

    decision = decide(among(changed, ELDER), NOW)

    assert decision.actions == (ReleaseWorkers(cluster="younger-0"),)


def test_a_job_that_lost_its_head_while_it_waited_gets_a_new_cluster():
    lost = replace(given_back(YOUNGER), pods=())

    decision = decide(among(lost), NOW)

    assert decision.actions == (DeleteCluster(cluster="younger-0"),)
    gone = replace(lost, status=decision.status, cluster=None)
    assert decide(among(gone, ELDER), NOW).actions == (MakeChildren(cluster="younger-0"),)


def test_the_start_deadline_counts_while_a_job_waits():
    waits = given_back(job("younger", bound=2, age=200, startDeadlineSeconds=200))

    status = decide(among(waits, ELDER), NOW).status

    failed = condition(status, "Failed")
    assert failed is not None and failed.reason == "StartDeadlineExceeded"
    assert f"startDeadlineSeconds, 200: {TOLD}" in failed.message
    assert not holds(status, "Held")


def test_a_suspended_job_waits_for_nobody():
    waits = given_back(job("younger", bound=2, age=200, suspend=True))

    decision = decide(among(waits, ELDER), NOW)

    assert decision.actions == (DeleteCluster(cluster="younger-0"),)
    assert not holds(decision.status, "Held")


def test_who_gets_no_further_for_long_and_lacks_what_nobody_has_lets_others_try():
    waits, later = given_back(YOUNGER), NOW + TURN_SECONDS

    decision = decide(among(ELDER, waits), later)

    assert decision.actions == (ReleaseWorkers(cluster="elder-0"),)
    told = condition(decision.status, "Held")
    assert told is not None and told.reason == "StepsBack"
    assert told.message == (
        "lets others try: it got no further for 300 s, and of the 2 huawei.com/Ascend910 that it "
        "lacks other jobs have 0"
    )
    behind = replace(given_back(ELDER), status=decision.status)
    assert asks(among(waits, behind))
    now_waits = condition(decide(among(behind, waits), later).status, "Held")
    assert now_waits is not None
    assert now_waits.message == (
        "waits for team/younger, whose turn comes first and lacks 4 of 4 worker pods"
    )


def test_a_job_that_nobody_waits_for_keeps_what_it_has():
    assert not released(among(ELDER), NOW + 9 * TURN_SECONDS)
    assert not released(among(ELDER, job("done", bound=4, age=900)), NOW + 9 * TURN_SECONDS)


def test_what_a_job_gave_up_is_for_five_minutes_for_those_that_found_no_room_at_all():
    stepped_back = {"stepped_back_time": rfc3339(NOW)}
    behind = given_back(ELDER)
    behind = replace(behind, status=behind.status.model_copy(update=stepped_back))
    nothing, waits = job("nothing", bound=0, age=300), given_back(YOUNGER, seconds=9 * TURN_SECONDS)

    for seconds, over in {TURN_SECONDS - 1: False, TURN_SECONDS: True}.items():
        now = NOW + seconds
        assert asks(among(behind, nothing), now) == over
        assert asks(among(waits, nothing, behind), now) == over


def test_who_lacks_what_a_running_job_has_keeps_its_pods_and_its_turn():
    runs = replace(
        job("runs", bound=4, age=900),
        status=ELDER.status.model_copy(update=SUBMITTED),
    )

    assert not released(among(ELDER, given_back(YOUNGER), runs), NOW + TURN_SECONDS)


def test_who_waits_for_long_tries_all_the_same_for_nodes_are_not_looked_at():
    for seconds, tries in {TURN_SECONDS - 1: False, TURN_SECONDS: True}.items():
        assert asks(among(given_back(YOUNGER, seconds=seconds), ELDER)) == tries
    another = given_back(job("youngest", bound=2, age=100))
    assert not asks(among(given_back(YOUNGER, seconds=TURN_SECONDS), ELDER, another))


class Two:
    """Two jobs with half of the devices each on an API in memory, and the operator. woken: jobs that it is to
    look at at once."""

    def __init__(self, **elder: Any) -> None:
        self.kube, self.world = MemoryKube(), World({"steps": 4}, lose_answers=0)
        self.kube.door.api = self.world.api
        self.world.api.objects.clear()
        self.bound = {"elder": 1, "younger": 1}
        self.restart()
        for name, accelerator in {"elder": elder, "younger": {}}.items():
            own = {"name": name, "namespace": KEY.namespace}
            job = merged(JOB, {"metadata": own, "spec": {"accelerator": accelerator}})
            self.world.api.write(self.path(name), job)
            self.world.now += 10

    def restart(self) -> None:
        """An operator that knows nothing."""
        self.woken: list[JobKey] = []
        self.operator = make_operator(self.world, self.kube, {})
        self.operator.queue = self

    def add_after(self, key: JobKey, seconds: float) -> None:
        if seconds == 0:
            self.woken.append(key)

    async def look_at(self, *names: str) -> None:
        """Passes over these jobs, one after the other."""
        for name in names:
            self.operator.cache = self.cache()
            await self.operator(JobKey(KEY.namespace, name))

    def path(self, name: str) -> str:
        return PATH.replace(KEY.name, name)

    def workers(self, name: str) -> int:
        """Worker pods that the job's RayCluster asks for."""
        found = {c["metadata"]["name"]: cluster_of(c) for c in self.world.api.stored("RayCluster")}
        return found[f"{name}-0"].workers

    def cache(self) -> Cache:
        cache = Cache()
        for kind in KINDS:
            found = [*self.pods()] if kind == "Pod" else self.world.api.stored(kind)
            cache.replace(kind, found, began=0.0, namespaces=None)
        return cache

    def pods(self) -> Iterator[Manifest]:
        """As many worker pods as `bound` says have a node; the others were refused one as long ago."""
        for cluster in self.world.api.stored("RayCluster"):
            bound = self.bound[cluster["metadata"]["labels"]["rljob.io/job"]]
            for pod in pods_of(cluster):
                role, number = pod["metadata"]["name"].rsplit("-", 2)[1:]
                if role == "worker":
                    placed = int(number) < bound
                    scheduled = {
                        "type": "PodScheduled",
                        "status": str(placed),
                        "reason": "" if placed else "Unschedulable",
                        "lastTransitionTime": rfc3339(self.world.now - 2 * PATIENCE_SECONDS),
                    }
                    pod["spec"] = {"nodeName": NODE} if placed else {}
                    pod["status"] = {"conditions": [scheduled]}
                yield pod


@pytest.mark.parametrize(
    ("resource", "left"), [("huawei.com/Ascend910", 0), ("example.com/other", 2)]
)
async def test_jobs_that_want_other_devices_are_nothing_to_a_job(resource, left):
    two = Two(resourceName=resource)

    await two.look_at("elder", "younger", "elder", "younger")

    assert (two.workers("elder"), two.workers("younger")) == (2, left)


async def test_a_new_operator_finds_who_waits_for_whom_and_news_of_one_wakes_the_other():
    two = Two()
    younger = JobKey(KEY.namespace, "younger")
    await two.look_at("elder", "younger", "elder", "younger")

    two.restart()
    await two.look_at("younger")
    assert two.workers("younger") == 0

    await two.look_at("elder")
    assert two.woken == []
    two.bound["elder"] = 2
    await two.look_at("elder")
    assert two.woken == [younger]
    await two.look_at("younger", "elder")
    assert two.workers("younger") == 2
    assert two.woken == [younger]


async def test_a_job_that_is_deleted_wakes_those_that_wait():
    two = Two()
    await two.look_at("elder", "younger", "elder", "younger")
    two.woken.clear()

    del two.world.api.objects[two.path("elder")]
    await two.look_at("elder", "younger")

    assert two.woken == [JobKey(KEY.namespace, "younger")]
    assert two.workers("younger") == 2
