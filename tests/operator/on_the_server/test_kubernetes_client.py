"""The operator's client against a real API server."""

from datetime import UTC, datetime, timedelta

import pytest
from cluster_jobs import SETTINGS, TOKEN

from rljob_api.check.load import read_job
from rljob_operator.build import children
from rljob_operator.errors import Conflict, Invalid, NotFound, Unavailable
from rljob_operator.kube.events import event_about
from rljob_operator.kube.kube_client import Kube
from rljob_operator.reconcile.observe import identity_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RLJOB = ("rljob.io/v1alpha1", "RLJob")


@pytest.fixture
async def job(kube, make_job):
    return await kube.create(make_job())


def children_of(manifest, **spec):
    document = {key: manifest[key] for key in ("apiVersion", "kind", "spec")}
    metadata = {"name": manifest["metadata"]["name"]}
    job = read_job(document | {"metadata": metadata, "spec": manifest["spec"] | spec})
    return children(job, identity_of(manifest), SETTINGS, TOKEN, cluster="spell-backward-0")


@pytest.mark.parametrize(
    "accelerator",
    [
        {"type": "emulated"},
        {"type": "ascend910b", "devicesPerNode": 8, "injection": "dra"},
        {"type": "ascend910c", "devicesPerNode": 16, "injection": "hostPath"},
    ],
    ids=lambda accelerator: accelerator["type"],
)
async def test_applying_the_children_again_changes_nothing(kube, job, accelerator):
    manifests = children_of(job, accelerator=job["spec"]["accelerator"] | accelerator)

    first = [await kube.apply(manifest) for manifest in manifests]
    second = [await kube.apply(manifest) for manifest in manifests]

    assert len(first) >= 4
    assert [m["metadata"]["resourceVersion"] for m in first] == [
        m["metadata"]["resourceVersion"] for m in second
    ]


async def test_a_status_patch_at_a_stale_version_is_a_conflict(kube, job):
    version = job["metadata"]["resourceVersion"]
    written = await kube.patch_status(job, {"phase": "Starting"}, version)

    with pytest.raises(Conflict, match="spell-backward"):
        await kube.patch_status(job, {"phase": "Running"}, version)

    assert (await kube.get(*RLJOB, job["metadata"]["namespace"], "spell-backward")) == written


async def test_a_status_patch_removes_what_is_gone_and_writes_nothing_twice(kube, job, server):
    version = job["metadata"]["resourceVersion"]
    job = await kube.patch_status(job, {"phase": "Starting", "devices": "0/1"}, version)
    job = await kube.patch_status(job, {"phase": "Suspended"}, job["metadata"]["resourceVersion"])
    writes = server.writes()

    same = await kube.patch_status(job, {"phase": "Suspended"}, "stale, but unused")

    assert job["status"] == same["status"] == {"phase": "Suspended"}
    assert server.writes() == writes


async def test_what_the_schema_refuses_is_told_with_the_servers_words(kube, job):
    with pytest.raises(Invalid, match=r"status\.attempt"):
        await kube.patch_status(job, {"attempt": -1}, job["metadata"]["resourceVersion"])


async def test_missing_objects_are_not_found_and_deleting_them_is_no_error(kube, namespace, job):
    with pytest.raises(NotFound):
        await kube.get("v1", "Secret", namespace, "nothing")

    assert await kube.delete("ray.io/v1", "RayCluster", namespace, "nothing") is False
    assert await kube.delete(*RLJOB, namespace, "spell-backward") is True
    assert await kube.delete(*RLJOB, namespace, "spell-backward") is False


async def test_an_object_that_is_another_one_by_now_is_neither_changed_nor_deleted(
    kube, namespace, job
):
    named = {"namespace": namespace, "name": "s"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": named, "stringData": {"a": "1"}}
    made = await kube.apply(secret)

    with pytest.raises(Invalid):
        await kube.apply(secret | {"stringData": {"a": "2"}}, uid="another")
    with pytest.raises(Conflict):
        await kube.apply(secret | {"metadata": named | {"name": "t"}}, uid="another")
    with pytest.raises(Conflict):
        await kube.delete(*RLJOB, namespace, "spell-backward", uid="another")

    assert (await kube.get("v1", "Secret", namespace, "s"))["data"] == made["data"]
    assert await kube.find("v1", "Secret", namespace, "t") is None
    uid = job["metadata"]["uid"]
    assert await kube.delete(*RLJOB, namespace, "spell-backward", uid=uid) is True


async def test_a_second_creation_is_a_conflict(kube, job, make_job):
    with pytest.raises(Conflict):
        await kube.create(make_job())


async def test_the_same_event_is_counted_and_another_is_not(kube, job, jobs):
    def event(message, minutes):
        when = NOW + timedelta(minutes=minutes)
        return event_about(job, type="Normal", reason="Running", message=message, timestamp=when)

    await kube.create_event(event("it runs", 0))
    await kube.create_event(event("it runs", 5))
    await kube.create_event(event("another", 6))

    told = {event["message"]: event for event in await jobs.events()}
    assert {message: event["count"] for message, event in told.items()} == {
        "it runs": 2,
        "another": 1,
    }
    assert told["it runs"]["firstTimestamp"] == "2026-01-02T03:04:05Z"
    assert told["it runs"]["lastTimestamp"] == "2026-01-02T03:09:05Z"


async def test_a_list_of_several_pages_is_whole_and_says_what_its_items_are(
    kube, make_job, namespace, monkeypatch
):
    monkeypatch.setattr("rljob_operator.kube.kube_client.PAGE_SIZE", 2)
    for number in range(5):
        await kube.create(make_job(f"job-{number}"))

    found = await kube.list(*RLJOB, namespace)

    assert sorted(item["metadata"]["name"] for item in found) == [f"job-{n}" for n in range(5)]
    assert {(item["apiVersion"], item["kind"]) for item in found} == {RLJOB}


async def test_a_list_by_label_leaves_the_others_out(kube, job, namespace):
    for manifest in children_of(job):
        await kube.apply(manifest)
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": "o"},
    }
    await kube.create(other)

    found = await kube.list("v1", "ConfigMap", namespace, labels={"rljob.io/job": None})

    assert [item["metadata"]["name"] for item in found] == ["spell-backward-rljob"]


async def test_a_token_that_is_not_taken_may_be_taken_later(server, metrics, namespace):
    stranger = Kube(metrics=metrics, config=server.config("wrong"))

    with pytest.raises(Unavailable):
        await stranger.list(*RLJOB, namespace)

    await stranger.close()
