"""The operator as it runs in production, on a real API server; KubeRay and Ray are fakes."""

import asyncio
import json
import sys

import yaml
from job_client import condition, of_attempt, phase, running, until

from rljob_operator.kube.kube_client import Kube
from rljob_operator.watch.cache import Cache

CLUSTERS = ("ray.io/v1", "RayCluster")
NAME = "spell-backward"


async def test_a_job_runs_to_its_end(operator, ray, kube, jobs, make_job, namespace):
    async with operator():
        await kube.create(make_job())
        await jobs.until(running)
        (driver,) = ray.live(namespace)
        driver.report = {"progress": {"step": 3, "totalSteps": 4, "reward": 0.5}}
        await jobs.until(lambda job: job["status"].get("progress", {}).get("step") == 3)
        driver.status = "SUCCEEDED"
        done = await jobs.until(lambda job: phase(job) == "Succeeded")

        await jobs.until_names("v1", "Pod", [f"{NAME}-0-head"])  # the devices are given back

    assert condition(done, "Succeeded")["status"] == "True"
    assert done["status"]["progress"]["step"] == 4
    assert [d.submission for d in ray.of(namespace)] == [f"rljob-{done['metadata']['uid'][:8]}-0"]


async def test_each_transition_is_one_event(operator, ray, kube, jobs, make_job, namespace):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)
        ray.live(namespace)[0].status = "SUCCEEDED"
        process.look_at(NAME)
        await jobs.until(lambda job: phase(job) == "Succeeded")

        await jobs.until_events(["PodsReady", "Running", "StepsDone"])

    events = await jobs.events()
    assert [event["count"] for event in events] == [1, 1, 1]
    assert {event["type"] for event in events} == {"Normal"}
    assert {event["involvedObject"]["name"] for event in events} == {NAME}


async def test_a_suspended_job_holds_no_pods_and_goes_on_in_another_layout_when_resumed(
    operator, ray, kube, jobs, make_job, namespace
):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)

        await jobs.change(suspend=True)
        await until(lambda: not ray.live(namespace))
        process.look_at(NAME)
        await jobs.until(lambda job: phase(job) == "Suspended")
        await jobs.until_names("v1", "Pod", [])
        held = await jobs.names(*CLUSTERS)
        other = {"accelerator": {"nodes": 2, "devicesPerNode": 1}}
        await jobs.change(suspend=False, **other, update={"parallelism": {"tensor": 2}})
        resumed = await jobs.until(of_attempt(1))
        cluster = await kube.get(*CLUSTERS, namespace, f"{NAME}-1")
        config = await kube.get("v1", "ConfigMap", namespace, f"{NAME}-rljob")

    assert held == []
    groups = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    assert groups["worker"]["replicas"] == 2
    run = yaml.safe_load(config["data"]["rljob.yaml"])["spec"]
    assert (run["accelerator"]["nodes"], run["update"]["parallelism"]["tensor"]) == (2, 2)
    assert [driver.status for driver in ray.of(namespace)] == ["STOPPED", "RUNNING"]
    assert resumed["status"].get("restarts", 0) == 0


async def test_a_deleted_job_is_not_made_again(operator, ray, kube, jobs, make_job, namespace):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)

        await kube.delete("rljob.io/v1alpha1", "RLJob", namespace, NAME)
        await until(lambda: not ray.live(namespace))
        process.look_at(NAME)
        await jobs.until_names("v1", "Pod", [])
        await asyncio.sleep(0.5)

        assert await jobs.names(*CLUSTERS) == []
    assert len(ray.of(namespace)) == 1


async def test_a_job_that_breaks_a_rule_is_told_where_and_nothing_is_made(
    operator, ray, kube, jobs, make_job, namespace
):
    rewards = [{"name": "exact", "type": "regex", "pattern": {"pattern": "("}}]

    async with operator():
        await kube.create(make_job(rewards=rewards, data={"chat": True}))
        refused = await jobs.until(lambda job: phase(job) == "Invalid")
        await jobs.until_events(["InvalidSpec"])

    validated = condition(refused, "Validated")
    assert (validated["status"], validated["reason"]) == ("False", "InvalidSpec")
    assert "spec.rewards[0].pattern.pattern" in validated["message"]
    assert "spec.data.chat" in validated["message"]
    assert await jobs.names(*CLUSTERS) == await jobs.names("v1", "Secret") == []
    assert [event["type"] for event in await jobs.events()] == ["Warning"]


async def test_a_job_that_is_too_large_is_told_by_path_and_nothing_is_made(
    operator, ray, kube, jobs, make_job, namespace
):
    large = {"name": "r", "type": "acme.x", "params": {"p": [0] * 400_000}}

    async with operator():
        await kube.create(make_job(rewards=[large]))
        refused = await jobs.until(lambda job: phase(job) == "Invalid")

    said = condition(refused, "Validated")["message"]
    assert said.startswith("spec.rewards[0].params.p: takes 800001 of the spec's 80")
    assert await jobs.names(*CLUSTERS) == await jobs.names("v1", "Secret") == []


async def test_a_job_that_is_nested_as_deeply_as_the_server_takes_it_stops_no_other(
    operator, ray, kube, server, jobs, make_job, namespace
):
    levels = 9_900
    deep = make_job("deep", rewards=[{"name": "r", "type": "acme.x", "params": {"p": "HERE"}}])
    text = json.dumps(deep).replace('"HERE"', '{"a":' * levels + "1" + "}" * levels)
    sys.setrecursionlimit(1000)  # as Python begins with

    async with operator():
        path = f"/apis/rljob.io/v1alpha1/namespaces/{namespace}/rljobs"
        made = await asyncio.to_thread(server.request, "POST", path, text)
        assert made.code == 201, made
        refused = await jobs.until(lambda job: phase(job) == "Invalid", name="deep")
        await kube.create(make_job())
        await jobs.until(running)
    async with operator():  # which lists it
        await jobs.change(suspend=True)
        await jobs.until(lambda job: phase(job) == "Suspended")

    said = condition(refused, "Validated")["message"]
    assert said.startswith("spec.rewards[0].params: is nested deeply")


async def test_a_changed_spec_is_applied_to_the_running_job(operator, kube, jobs, make_job):
    async with operator():
        await kube.create(make_job())
        await jobs.until(running)

        changed = await jobs.change(checkpoint={"every": 2}, backoffLimit=7)
        generation = changed["metadata"]["generation"]
        await jobs.until(lambda job: job["status"]["observedGeneration"] == generation)
        # The status comes first, what it announces after it.
        await jobs.until_object(
            "v1",
            "ConfigMap",
            f"{NAME}-rljob",
            lambda config: "every: 2" in config["data"]["rljob.yaml"],
        )
        await jobs.change(activeDeadlineSeconds=1)
        failed = await jobs.until(lambda job: phase(job) == "Failed")

    assert condition(failed, "Failed")["reason"] == "DeadlineExceeded"


async def test_a_pass_over_an_unchanged_job_writes_nothing(
    operator, server, kube, jobs, make_job, namespace
):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)
        await jobs.until_events(["PodsReady", "Running"])
        before = await jobs.get()
        passes, writes = process.passes(), server.writes()

        for _ in range(5):
            done = process.passes()
            process.look_at(NAME)
            await until(lambda done=done: process.passes() > done)  # type: ignore[misc]

    assert process.passes() >= passes + 5
    assert server.writes() == writes
    assert (await jobs.get())["metadata"] == before["metadata"]


async def test_a_head_that_restarts_in_place_costs_one_restart_on_a_new_cluster(
    operator, ray, kuberay, kube, jobs, make_job, namespace
):
    async with operator():
        await kube.create(make_job())
        await jobs.until(running)

        await kuberay.restart_head(namespace, f"{NAME}-0")
        again = await jobs.until(of_attempt(1))

        assert await jobs.names(*CLUSTERS) == [f"{NAME}-1"]
    assert again["status"]["restarts"] == 1
    assert again["status"]["failures"][0]["reason"] == "HeadLost"
    assert [driver.status for driver in ray.of(namespace)] == ["FAILED", "RUNNING"]


async def test_a_driver_that_fails_is_started_again_on_the_same_cluster(
    operator, ray, kube, jobs, make_job, namespace
):
    async with operator() as process:
        await kube.create(make_job())
        await jobs.until(running)

        (driver,) = ray.live(namespace)
        driver.log, driver.exit_code, driver.status = "loss is nan", 1, "FAILED"
        process.look_at(NAME)
        again = await jobs.until(of_attempt(1))

        assert await jobs.names(*CLUSTERS) == [f"{NAME}-0"]
    (failure,) = again["status"]["failures"]
    assert (failure["reason"], failure["exitCode"]) == ("DriverFailed", 1)
    assert failure["message"] == "loss is nan"
    assert [driver.status for driver in ray.of(namespace)] == ["FAILED", "RUNNING"]


async def test_a_standby_takes_over_without_a_second_driver(
    operator, ray, kube, jobs, make_job, namespace
):
    await kube.create(make_job())
    async with operator() as standby, operator() as other:
        await jobs.until(running)
        leaders = [process for process in (standby, other) if process.is_leader()]
        assert len(leaders) == 1
        leaders[0].stop()
        await until(lambda: not leaders[0].is_leader())
        heir = other if leaders[0] is standby else standby
        await until(heir.is_leader)
        ray.live(namespace)[0].status = "SUCCEEDED"

        await jobs.until(lambda job: phase(job) == "Succeeded")

    assert len(ray.of(namespace)) == 1


async def test_a_running_job_is_not_judged_before_the_operator_has_heard_of_its_cluster(
    operator, ray, server, kube, jobs, make_job, namespace, monkeypatch
):
    async with operator():
        await kube.create(make_job())
        before = await jobs.until(running)
        await jobs.until_events(["PodsReady", "Running"])
    deaf, put, listing = [True], Cache.put, Kube.list

    def hears_of_no_cluster(self, kind, manifest, *, observed_at):
        return (
            set()
            if deaf[0] and kind == "RayCluster"
            else put(self, kind, manifest, observed_at=observed_at)
        )

    async def is_slow_to_list(self, api_version, kind, *arguments, **options):
        if kind == "RayCluster":
            await asyncio.sleep(2.0)
            deaf[0] = False
        return await listing(self, api_version, kind, *arguments, **options)

    monkeypatch.setattr(Cache, "put", hears_of_no_cluster)
    monkeypatch.setattr(Kube, "list", is_slow_to_list)
    writes = server.writes()

    async with operator() as process:
        await until(lambda: process.passes() >= 1)

    assert not deaf[0]
    assert (await jobs.get())["status"] == before["status"]
    assert len(ray.of(namespace)) == 1
    changed = {key for key, count in server.writes().items() if count != writes.get(key, 0)}
    assert {resource for _, resource in changed} <= {"leases"}
