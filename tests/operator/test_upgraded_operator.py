"""An operator of another release takes running jobs up: their pods stay, the next attempt is its own.

The cluster of the release before is what its own operator wrote (tests/fixtures/last_release/cluster.yaml).
"""

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, merged
from memory_ray import MemoryDriver
from memory_world import KEY, MemoryKube, World, make_operator

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.build.cluster import images_of, pod_images

LEFT = Path(__file__).parents[1] / "fixtures" / "last_release" / "cluster.yaml"
OTHER = replace(SETTINGS, runtime_image="example.com/runtime:other", stop_seconds=77)


async def passes(world, kube, settings, number=3):
    """What an operator that starts now does in so many passes."""
    kube.door.api = world.api
    operator = make_operator(world, kube, {})
    operator.settings = settings
    for _ in range(number):
        world.goes_on()
        operator.cache = world.cache()
        await operator(KEY)


def of_the_release_before():
    left = yaml.safe_load(LEFT.read_text())
    world = World({"steps": 4}, lose_answers=0)
    world.api.objects, world.now = left["objects"], left["now"]
    world.api._version = 1000
    world.ray.drivers = [MemoryDriver(**left["driver"])]
    world.ray.heads = {left["driver"]["cluster"]}
    return world


async def of_this_release():
    world = World({"steps": 4}, lose_answers=0)
    await passes(world, MemoryKube(), SETTINGS, 20)
    return world


@pytest.fixture(params=["upgrade", "rollback"])
async def world(request):
    """A job that trains, whose cluster an operator with other images made: of the release before, which is
    upgraded; or of this one, after which one with other images comes back."""
    made = of_the_release_before() if request.param == "upgrade" else await of_this_release()
    assert made.phase == "Running"
    return made


def cluster(world):
    (found,) = world.api.stored("RayCluster")
    return found


def but_the_job(world):
    return {path: found for path, found in world.api.objects.items() if found["kind"] != "RLJob"}


async def test_nothing_of_a_running_job_is_written(world):
    before = dict(but_the_job(world))

    await passes(world, MemoryKube(), OTHER)

    found = {path: it for path, it in but_the_job(world).items() if it["kind"] != "Event"}
    assert found == {path: it for path, it in before.items() if it["kind"] != "Event"}
    assert world.phase == "Running" and world.job["status"]["attempt"] == 0
    assert [driver.status for driver in world.ray.drivers] == ["RUNNING"]


async def test_what_the_release_before_would_not_store_is_not_written_again_and_again(world):
    await passes(world, MemoryKube(), OTHER)

    with tarfile.open(LEFT.parent / "chart.tgz") as chart:
        crd = yaml.safe_load(chart.extractfile("rljob/files/rljobs.rljob.io.yaml"))
    known = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert world.job["status"].keys() <= known["properties"].keys()


async def test_a_job_that_is_changed_keeps_its_pods_and_what_they_were_started_with(world):
    before = {path: it for path, it in but_the_job(world).items() if it["kind"] != "Event"}

    world.set(steps=8)
    await passes(world, MemoryKube(), OTHER)

    assert {path: world.api.objects[path] for path in before} == before
    assert world.job["status"]["observedGeneration"] == 2
    assert world.phase == "Running"


async def test_the_next_attempt_is_of_this_operator_whole(world):
    world.set(steps=8)
    world.ray.drivers[0].status = "FAILED"

    await passes(world, MemoryKube(), OTHER, 20)

    (config,) = world.api.stored("ConfigMap")
    assert (world.phase, world.job["status"]["attempt"]) == ("Running", 1)
    assert pod_images(cluster(world)) == {OTHER.runtime_image}
    assert cluster(world)["metadata"]["name"].endswith("-1")
    assert yaml.safe_load(config["data"]["rljob.yaml"])["spec"]["steps"] == 8
    assert [driver.status for driver in world.ray.drivers] == ["FAILED", "RUNNING"]


async def test_the_end_of_a_job_is_seen_and_gives_its_devices_back(world):
    world.ray.drivers[0].status = "SUCCEEDED"

    await passes(world, MemoryKube(), OTHER)

    groups = cluster(world)["spec"]["workerGroupSpecs"]
    assert world.phase == "Succeeded"
    assert [group["replicas"] for group in groups] == [0, 0]
    assert pod_images(cluster(world)) == {SETTINGS.runtime_image}


async def test_an_attempt_that_fails_under_the_operator_that_made_it_keeps_its_warm_pods(world):
    name = cluster(world)["metadata"]["name"]
    world.ray.drivers[0].status = "FAILED"

    await passes(world, MemoryKube(), SETTINGS, 20)

    assert (world.phase, world.job["status"]["attempt"]) == ("Running", 1)
    assert cluster(world)["metadata"]["name"] == name


def test_of_a_living_cluster_the_numbers_of_pods_alone_change():
    job = read_job(merged(JOB, {"spec": {"accelerator": {"nodes": 4}}}))

    def made(settings, **how):
        return children(job, identity(), settings, TOKEN, cluster="job-0", **how)

    living = made(SETTINGS)[-1]
    (fewer,) = made(OTHER, living=living, workers=2, leaving=("pod-3",))

    worker, warehouse = fewer["spec"]["workerGroupSpecs"]
    assert (worker["replicas"], worker["minReplicas"], worker["maxReplicas"]) == (2, 2, 2)
    assert worker["scaleStrategy"] == {"workersToDelete": ["pod-3"]}
    assert warehouse == living["spec"]["workerGroupSpecs"][1]
    assert worker["template"] == living["spec"]["workerGroupSpecs"][0]["template"]
    assert fewer["spec"]["headGroupSpec"] == living["spec"]["headGroupSpec"]
    assert pod_images(fewer) == images_of(job.spec, SETTINGS) != images_of(job.spec, OTHER)
